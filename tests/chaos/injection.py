"""Faults at the system calls of a running daemon, injected by strace: it is killed at its N-th sync, or its syncs fail.

strace traces only the daemon, not the agents that already run. It counts per thread, and only one thread commits.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from gpq.errors import GpqError
from gpq.rpc.job_answers import CancelResult, Changed
from gpq.rpc.requests import Cancel, Requeue
from tests.e2e.harness import ENDED, Daemon
from tests.support.waiting import PATIENCE, wait_until

T = TypeVar("T")

SYNCS = "fdatasync,fsync"
WRITES = "pwrite64,fdatasync,fsync"  # calls of the database: pwrite64 writes its log and its pages
STEPS = ("submit", "run", "finish", "requeue", "run again", "cancel")
AIMED = 3  # tries for each step that was missed

COUNTED = 'echo "$GPQ_JOB_ID $GPQ_ATTEMPT" >> ran; '
ENDING = COUNTED + "exit 7"
STAYING = "trap 'exit 75' USR1; " + COUNTED + "while :; do sleep 0.05; done"


class Died(Exception):
    """The daemon died in the middle of a step."""


@contextlib.contextmanager
def injected(daemon: Daemon, calls: str, what: str) -> Iterator[None]:
    """strace's `inject=calls:what` for the daemon, from now on."""
    assert daemon.process is not None
    argv = ["strace", "-f", "-p", str(daemon.process.pid), "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]
    with tempfile.TemporaryFile() as told:
        tracer = subprocess.Popen([*argv, "-o", "/dev/null"], stderr=told)

        def attached() -> bool:
            told.seek(0)
            if tracer.poll() is not None:
                raise AssertionError(f"strace: {told.read()!r}")
            return b"attached" in told.read()

        try:
            wait_until(attached, "strace is attached")
            yield
        finally:
            tracer.terminate()  # it first detaches from the daemon
            tracer.wait(PATIENCE)


@dataclass
class Life:
    """One round over the life of two jobs: one ends on its own, one is requeued and then cancelled. Restarts what
    died."""

    daemon: Daemon
    number: int
    deaths: list[str] = field(default_factory=list)  # the step of each
    wrong: list[str] = field(default_factory=list)
    aim: str = ""  # the first sync of this step kills it

    def live(self) -> None:
        first = self._submitted("first", ENDING)
        self._at("finish", lambda: self.daemon.until(first, *ENDED))
        second = self._submitted("second", STAYING, level="signal", signal="USR1")
        self._ran(second, 1)
        self._at("requeue", lambda: self._requeued(second))
        self._ran(second, 2)
        self._at("cancel", lambda: self.daemon.call(Cancel([str(second)], wait=PATIENCE), CancelResult))
        self._at("cancel", lambda: self.daemon.until(second, *ENDED))
        self._judge(first, second)

    def _at(self, step: str, do: Callable[[], T]) -> T:
        """Until some daemon answers it."""
        if step == self.aim:
            self.aim = ""
            with injected(self.daemon, SYNCS, "signal=KILL:when=1"):
                return self._at(step, do)
        while True:
            with contextlib.suppress(Died):
                return self._tried(step, do)

    def _tried(self, step: str, do: Callable[[], T]) -> T:
        """Raises Died if the daemon died. Then the next one serves."""
        try:
            return do()
        except (OSError, GpqError) as error:
            assert self.daemon.process is not None
            try:
                self.daemon.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{step}: it lives, and answered {error!r}") from error
            self.deaths.append(step)
            self.daemon.start()
            raise Died from error

    def _submitted(self, name: str, command: str, **more: object) -> int:
        """Acknowledged, or found in the queue although the answer never came."""
        name = f"{name}-{self.number}"

        def submit() -> int:
            known = [row.id for row in self.daemon.rows().jobs if row.name == name]
            if len(known) > 1:
                self.wrong.append(f"{name} is there twice")
            return known[0] if known else self.daemon.shell(command, name=name, **more)

        job = self._at("submit", submit)
        if [row.id for row in self._at("submit", self.daemon.rows).jobs if row.name == name] != [job]:
            self.wrong.append(f"{name} was acknowledged as {job} but is not there exactly once")
        return job

    def _ran(self, job: int, attempt: int) -> None:
        """Its script sets the trap before it writes the line."""
        wanted = f"{job} {attempt}"

        def running() -> bool:
            found = self.daemon.detail(job).job
            return found.state == "running" and found.attempt >= attempt and wanted in self._lines()

        self._at("run" if attempt == 1 else "run again", lambda: wait_until(running, f"attempt {wanted} runs"))

    def _requeued(self, job: int) -> None:
        found = self.daemon.detail(job).job
        if found.attempt == 1 and found.state == "running":
            self.daemon.call(Requeue([str(job)]), Changed)

    def _lines(self) -> list[str]:
        path = self.daemon.work / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def _judge(self, first: int, second: int) -> None:
        def look() -> dict[int, tuple[str, int | None]]:
            return {row.id: (row.state, row.exit_status) for row in self.daemon.rows((first, second)).jobs}

        told = self._at("judge", look)
        if told.get(first) != ("failed", 7):
            self.wrong.append(f"job {first} ended with 7 but is reported as {told.get(first)}")
        if told.get(second, ("",))[0] != "cancelled":
            self.wrong.append(f"job {second} was cancelled but is reported as {told.get(second)}")
        lines = [line for line in self._lines() if int(line.split()[0]) in (first, second)]
        if sorted(lines) != sorted({f"{first} 1", f"{second} 1", f"{second} 2"}):
            self.wrong.append(f"ran: {lines}")


@dataclass
class Points:
    """The results of the kills at each point in turn."""

    killed: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def lived(self, life: Life) -> None:
        life.live()
        self.killed += bool(life.deaths)
        self.wrong += [f"life {life.number}: {line}" for line in life.wrong]
        for step in life.deaths:
            self.steps[step] = self.steps.get(step, 0) + 1


def killed_at_every(calls: str) -> Points:
    """Kill the daemon at the N-th of `calls` of a life, N = 1, 2 ..., until a life has no N-th.

    Commits group differently from life to life, so a step may be missed. Each step certainly has a sync, so the test
    then aims at that.
    """
    found, number = Points(), 0
    with Daemon(slots=2) as daemon:
        while not number or found.killed == number:
            number += 1
            with injected(_ready(daemon), calls, f"signal=KILL:when={number}"):
                found.lived(Life(daemon, number))
        for _ in range(AIMED):
            for step in [step for step in STEPS if step not in found.steps]:
                number += 1
                found.lived(Life(_ready(daemon), number, aim=step))
    return found


def _ready(daemon: Daemon) -> Daemon:
    wait_until(lambda: all(node.state == "up" for node in daemon.nodes().nodes), "its node is up")
    return daemon


@dataclass
class Failing:
    """What a daemon did after its syncs began to fail."""

    acknowledged: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)  # acknowledged, but not there afterwards
    exit_code: int | None = None
    said: str = ""


def failing_syncs(good: int) -> Failing:
    """Submit until the daemon ends. `good` syncs succeed, and every later one fails with EIO."""
    found = Failing()
    with Daemon(slots=1) as daemon:
        runs = daemon.shell("while [ ! -e go ]; do sleep 0.05; done; exit 9")
        daemon.until(runs, "running")
        with injected(daemon, SYNCS, f"error=EIO:when={good + 1}+"), contextlib.suppress(OSError, GpqError):
            while True:
                found.acknowledged.append(daemon.shell("true"))
        assert daemon.process is not None
        found.exit_code = daemon.process.wait(PATIENCE)
        found.said = daemon.output()
        daemon.start()
        there = {row.id for row in daemon.rows().jobs}
        found.false = [job for job in found.acknowledged if job not in there]
        (daemon.work / "go").touch()
        if daemon.ended(runs) != {runs: ("failed", 9)}:
            found.false.append(runs)
    return found
