"""`gpq logs -f` of a job on a healthy server while another server hangs: a slow server delays nobody else."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.daemon.daemons import QUICK
from tests.lab.daemons import LabDaemon, took
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

# Prints the time, 20 times a second. All servers of a laboratory have the same clock.
SPEAKS = "import os, time\nwhile not os.path.exists('go'): print(time.time(), flush=True); time.sleep(0.05)"
WAITS = "while ! test -e go; do sleep 0.1; done"
ENOUGH = 160  # lines for a 99th percentile, 8 s


class Follower(threading.Thread):
    """Notes when each line arrives."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.heard: list[tuple[float, float]] = []  # when the line was printed, how much later it arrived

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # gpq's own lines between attempts
                said = float(line)
                self.heard.append((said, time.time() - said))

    def delays(self, since: float) -> list[float]:
        """Delays of what was printed since then, in seconds, the longest last. A line that has not arrived counts with
        its age."""
        heard = [(said, late) for said, late in list(self.heard) if said >= since]
        newest = max((said for said, _ in heard), default=since)
        return sorted([late for _, late in heard] + [time.time() - newest])


@contextlib.contextmanager
def following(daemon: LabDaemon, job: int) -> Iterator[Follower]:
    with daemon.follow(job) as process:
        try:
            follower = Follower(process)
            follower.start()
            wait_until(lambda: len(follower.heard) > 20, "it follows")
            yield follower
        finally:
            process.kill()
            follower.join(10.0)


def gathered(follower: Follower) -> list[float]:
    """Delays of the lines within the next seconds."""
    since = time.time()
    wait_until(lambda: len(follower.delays(since)) > ENOUGH, "lines of the healthy server")
    return follower.delays(since)


def p99(delays: list[float]) -> float:
    return delays[int(0.99 * len(delays))]


@pytest.mark.long
@pytest.mark.row("18")
def test_a_follower_of_a_healthy_server_does_not_notice_that_another_hangs(lab: Lab, figures: Figures) -> None:
    with LabDaemon(lab, {"srv-a": 1, "srv-b": 1}, pace=QUICK) as daemon:
        daemon.up()
        waiter = daemon.run(WAITS)
        jobs = {daemon.place(waiter): waiter}
        speaker = daemon.submit("python3", "-c", SPEAKS, cwd="/home/ada", python="")
        jobs[daemon.place(speaker)] = speaker
        hung = daemon.place(waiter)
        with following(daemon, speaker) as follower:
            before = gathered(follower)
            lab[hung].freeze_sshd()
            began = time.time()
            unknown = took(lambda: daemon.node(hung).state != "up", "the frozen one is unknown")
            gathered(follower)
            # the whole fault: before it is noticed, during it, and while gpq tries again
            during = follower.delays(began)
        lab[hung].thaw_sshd()
        figures.note("p99 of the delay of `gpq logs -f`, with healthy servers", f"{p99(before) * 1000:.0f} ms")
        figures.note("median, with healthy servers and while a server hangs", f"{_ms(before)} and {_ms(during)}")
        figures.note("until the hanging one was unknown", f"{unknown:.1f} s")
        figures.at_most("p99 of the delay while another server hangs", p99(during), max(2 * p99(before), 0.25))
        daemon.up()
        for name in jobs:
            (lab[name].home / "go").touch()
        assert daemon.ended(*jobs.values()) == dict.fromkeys(jobs.values(), ("completed", 0))


def _ms(delays: list[float]) -> str:
    return f"{statistics.median(delays) * 1000:.0f} ms"
