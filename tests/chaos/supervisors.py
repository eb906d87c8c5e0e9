"""kill -9 of shims (supervisors): in the middle of a start, and under jobs that live on. The jobs' own ledger is the
judge."""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpq_agent import wire
from gpq_agent.node.host import procs

from tests.agent.node.harness import NodeAgent, shims, survivors, sweep
from tests.chaos.runs import Measured, run
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE, wait_until

TOGETHER = 8  # jobs whose shims are killed at once
LIVES = "echo run >> ran-$GPQ_JOB_ID; while [ ! -e {gate} ]; do sleep 0.05; done; exit 9"


@contextmanager
def node_agent(*options: str) -> Iterator[NodeAgent]:
    """An agent on its own spool, which leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="gpq-"))
    node = NodeAgent(folder / "spool", *options)
    try:
        yield node
    finally:
        node.close()
        sweep(node.spool)
        shutil.rmtree(folder, ignore_errors=True)


@run("start-kills", row="25", times=1000, unit="start with a kill -9 of its supervisor at a random instant")
def start_kills(times: int, seed: int) -> Sequence[Measured]:
    """The job notes its own run. Each noted run must have a durable record, and no job may run twice."""
    dice = random.Random(seed)
    killed = unrecorded = left = 0
    states: Counter[str] = Counter()
    with node_agent("--slots", "1") as node:
        ran = node.spool.parent / "ran"
        known = {process.pid for process in shims(node.spool)}
        for job in range(1, times + 1):
            number = node.send("start", order=node.order(job, ["sh", "-c", f"echo {job} >> {ran}; sleep 600"]))
            young = _young_shims(node, known)
            instant = time.monotonic() + dice.uniform(0.0, 0.02)
            while time.monotonic() < instant:
                pass
            killed += sum(procs.send(process, signal.SIGKILL) for process in young)
            known.update(process.pid for process in young)
            assert node.reply(number)["ok"]
            key = f"{job}.1"
            info = wait_until(
                lambda key=key: (now := node.attempts()[key])["state"] != "starting" and now, "a decision"
            )  # type: ignore[misc]
            states[info["state"]] += 1
            recorded = (node.folder(key) / wire.STARTED).exists()
            if info["state"] in ("running", "orphan"):
                unrecorded += not recorded
                node.ask("stop", attempt=key, mode="kill", grace=0)
                node.wait_for(key, "exited", "lost")  # lost: it still waited for its go byte, and gave up
            left += len(survivors(node.spool, key))
        noted = ran.read_text().split() if ran.exists() else []
        unrecorded += sum(not (node.folder(f"{job}.1") / wire.STARTED).exists() for job in set(noted))
    return [
        Measured("supervisors killed", killed, at_least=times // 10),
        Measured("killed before the job ran", states["lost"]),
        Measured("killed while the job ran", states["orphan"]),
        Measured("runs without a record", unrecorded, at_most=0),
        Measured("jobs that ran twice", len(noted) - len(set(noted)), at_most=0),
        Measured("processes left", left, at_most=0),
    ]


def _young_shims(node: NodeAgent, known: set[int]) -> list[procs.Process]:
    """As soon as they are there, because a poll with pauses would miss the first instants."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        young = [one for one in shims(node.spool) if one.pid not in known and one.parent != node.process.pid]
        if young:
            return young
    raise AssertionError(f"no shim within {PATIENCE:.0f} s")


@run("shim-kills", row="24", times=200, unit="kill -9 of a supervisor of a running job")
def shim_kills(times: int, seed: int) -> Sequence[Measured]:
    """Its job continues and keeps its GPU until it ends. After that, gpq does not claim to know its exit code."""
    killed = disturbed = intruders = known = twice = 0
    with Daemon(slots=TOGETHER) as daemon:
        for first in range(0, times, TOGETHER):
            gate = daemon.work / f"gate-{first}"
            jobs = [daemon.shell(LIVES.format(gate=gate)) for _ in range(min(TOGETHER, times - first))]
            for job in jobs:
                wait_until((daemon.work / f"ran-{job}").exists, "it runs")
                daemon.until(job, "running")
            killed += sum(_kill_shim(daemon, job) for job in jobs)
            waiting = [daemon.shell("echo run >> intruders") for _ in range(TOGETHER)]
            seen = wait_until(lambda jobs=jobs: _all_looked_at(daemon, jobs), "the orphans were looked at")  # type: ignore[misc]
            disturbed += sum(state != "running" for state in seen)
            here = daemon.work / "intruders"
            ran = here.read_text().count("run") if here.exists() else 0
            intruders += max(ran - first - (TOGETHER - len(jobs)), 0)
            gate.touch()
            ends = daemon.ended(*jobs)
            known += sum(end != ("failed", 1) for end in ends.values())
            known += sum(
                "not known" not in daemon.detail(job).job.reason and "killed" not in daemon.detail(job).job.reason
                for job in jobs
            )
            assert set(daemon.ended(*waiting).values()) == {("completed", 0)}
            twice += sum((daemon.work / f"ran-{job}").read_text() != "run\n" for job in jobs)
    return [
        Measured("supervisors killed", killed, at_least=times),
        Measured("jobs that did not continue afterwards", disturbed, at_most=0),
        Measured("jobs started on a GPU that was not free", intruders, at_most=0),
        Measured("exit codes made up", known, at_most=0),
        Measured("jobs that ran twice", twice, at_most=0),
    ]


def _kill_shim(daemon: Daemon, job: int) -> bool:
    record = json.loads((daemon.home / "nodes" / "local" / "attempts" / f"{job}.1" / wire.SHIM).read_text())
    process = procs.read(record["pid"])
    if process is None or process.start_time != record["start_time"]:
        return False
    gone = procs.send(process, signal.SIGKILL)
    wait_until(lambda: not procs.lives(record, procs.boot_id()), "the shim is gone")
    return gone


def _all_looked_at(daemon: Daemon, jobs: Sequence[int]) -> list[str]:
    """States of the jobs, once the daemon's log says for each that its shim is gone."""
    said = (daemon.home / "daemon.log").read_text(errors="replace")
    if not all(f"the shim of attempt {job}.1 is gone" in said for job in jobs):
        return []
    return [daemon.state(job) for job in jobs]
