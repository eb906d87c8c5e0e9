"""Start orders that a relay delays, repeats and reorders, while links break and users cancel."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from tests.chaos.runs import Measured, run
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

RELAY = Path(__file__).with_name("relay.py")
RUN_SECONDS = 1.0  # seconds that one of these takes at most
RUNS = 'echo "$GPQ_JOB_ID.$GPQ_ATTEMPT $$" >> ran; sleep 0.3; echo "$GPQ_JOB_ID.$GPQ_ATTEMPT" >> done; exit 3'


class Relayed(Daemon):
    """Two servers with four slots, each behind a relay."""

    def __init__(self, seed: int, late: float) -> None:
        super().__init__(nodes={"a": 4, "b": 4})
        lines = ['policy = "fifo"']
        for name in ("a", "b"):
            script = self.home / f"python-{name}"
            script.write_text(
                f'#!/bin/sh\nexec {sys.executable} {RELAY} {seed}{name} {late} {self.work}/relayed "$@"\n'
            )
            script.chmod(0o700)
            lines += [f"[nodes.{name}]", "slots = 4", f'python = "{script}"']
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")

    def hang_up(self, name: str) -> None:
        """The way back from a server breaks. Its agent still gets what the relay holds, next to the next agent."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if str(RELAY) in child.cmdline() and str(self.home / "nodes" / name) in child.cmdline():
                    child.send_signal(signal.SIGUSR1)


def _relayed(ledger: Path) -> Counter[str]:
    """How often each thing happened to a start."""
    return Counter(line.partition(":")[0] for line in ledger.read_text().splitlines())


def _is_over(ledger: Path, longest: float) -> bool:
    """The relay holds nothing back any more, and what it delivered last has had time to run. A killed relay never
    delivers what it held: then nothing shows for longer than the longest delay."""
    relayed, quiet = _relayed(ledger), time.time() - ledger.stat().st_mtime
    return quiet > RUN_SECONDS + longest * (relayed["held"] != relayed["delivered"])


@run("starts", row="20", times=200, unit="start order that arrives late, twice or after later orders")
def starts(times: int, seed: int, late: float = 23.0) -> Sequence[Measured]:
    """Each attempt runs at most once, gpq refuses an order that comes too late, and every job ends with its own code."""
    dice = random.Random(seed)
    with Relayed(seed, late) as daemon:
        jobs: list[int] = []
        gone: list[int] = []
        for number in range(times):
            jobs.append(daemon.shell(RUNS, retries=0))
            if dice.random() < 0.1:
                gone.append(jobs[-1])
                daemon.call(Cancel([str(jobs[-1])], wait=0.0), CancelResult)
            if number % 20 == 10:
                daemon.hang_up(dice.choice("ab"))
            time.sleep(dice.uniform(0.0, 0.1))
        wait_until(
            lambda: not daemon.rows().jobs or all(row.ended_at for row in daemon.rows().jobs), "all have ended", 600.0
        )
        ledger = daemon.work / "relayed"
        longest = max(late, 3.0)
        wait_until(lambda: _is_over(ledger, longest), "the relays have delivered everything, and it has run", 120.0)
        relayed = _relayed(ledger)
        refused, plain = relayed.pop("expired", 0), relayed.pop("plain", 0)
        del relayed["held"], relayed["delivered"]
        ran = Counter(line.split()[0] for line in (daemon.work / "ran").read_text().splitlines())
        over = {row.id: (row.state, row.exit_status) for row in daemon.rows().jobs}
        by_job = Counter(int(key.partition(".")[0]) for key in ran)
        wrong = [job for job in jobs if over[job] != ("failed", 3) and job not in gone]
    return [
        Measured("starts delayed, repeated or reordered", sum(relayed.values()), at_least=times // 3),
        Measured("starts delivered normally", plain),
        Measured("starts held back for longer than they are valid", relayed["late"]),
        Measured("starts refused as expired (others were already known)", refused),
        Measured("attempts that ran twice", sum(count > 1 for count in ran.values()), at_most=0),
        Measured("jobs that ran in two attempts", sum(count > 1 for count in by_job.values()), at_most=0),
        Measured("jobs with a wrong end", len(wrong), at_most=0, why=str(wrong)),
    ]
