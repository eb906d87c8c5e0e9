"""Runs the script in its shapes, side by side as far as there are cores; no process of it outlives
the command.

Each replica is a session of its own, ended as a whole, and holds a line to this process: at its end
it ends itself. The reference is an interpreter of its own. The others are forks of another one:
what hangs on where objects lie in memory still differs from the reference, as it would from one
attempt of a job to the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpq_agent import wire

from gpq.check.fork_server import Fork, ForkServer, ServerLost
from gpq.check.scratch import confined
from gpq.check.shapes import REFERENCE, Attempt, Shape
from gpq.errors import GpqError, Interrupted

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_000)
TRIES = 3  # of an attempt whose port was taken
POLL_SECONDS = 0.02
LAST_LINES = 12
MOST_OF_A_LOG = 1 << 16  # bytes of its end that are looked at

Process = subprocess.Popen[bytes] | Fork


@dataclass(frozen=True, slots=True)
class Program:
    """What is run. `environ`: all of its environment but the shape's; `isolated`: every replica in
    a fresh interpreter."""

    python: str
    script: str
    arguments: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]
    gpu: bool = False
    isolated: bool = False


@dataclass
class Course:
    """One shape on its way: `attempt` is the index of the one that runs, -1 before the first."""

    shape: Shape
    folder: Path
    attempt: int = -1
    processes: list[Process] = field(default_factory=list)
    failed: str = ""  # why it did not come to its end
    log: str = ""  # of the process that failed
    over: bool = False
    tries: int = 1

    def log_of(self, rank: int) -> Path:
        """What a replica of the attempt that runs, or ran last, printed."""
        return self.folder / f"{self.attempt + 1}.{rank}.log"

    def error(self) -> str:
        """The last line of what failed."""
        line = " ".join(last_lines(self.log)[-1:])
        return line.removeprefix("[rank0]: ") or self.failed


class Runner:
    """A context: at its end everything that it started is gone. `exact`: does it run in full
    precision? `remarks`: what the user is to know of the way that it ran."""

    def __init__(self, program: Program, folder: Path, steps: int) -> None:
        self._program, self._folder, self._steps = program, folder, steps
        self._environ = dict(program.environ)
        self._head = confined(program.python, folder)  # of the command of every process
        if not program.gpu:
            self._environ |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        self._courses: list[Course] = []
        self._server: ForkServer | None = None
        self.remarks: list[str] = []
        self.exact = True
        self._lifeline, self._lifeline_end = os.pipe()

    def __enter__(self) -> Runner:
        program = self._program
        if program.script.endswith(".py") and not program.isolated:
            log = self._folder / "fork-server.log"
            self._server = ForkServer(
                program.python,
                program.script,
                program.cwd,
                self._environ,
                self._lifeline,
                log,
                self._head,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._server is not None:
            self._server.close()
        os.close(self._lifeline_end)
        os.close(self._lifeline)

    def run(
        self, shapes: Sequence[Shape], deadline: float, on_end: Callable[[str], None]
    ) -> list[Course]:
        """All of them to their ends, or until the first of `shapes` fails, or `deadline` (monotonic
        seconds) is there: then what still runs is stopped, and not over. `on_end` hears of each."""
        courses = [Course(shape, self._prepared(shape)) for shape in shapes]
        self._courses += courses
        cores = max(2, len(os.sched_getaffinity(0)))
        while not all(course.over for course in courses) and time.monotonic() < deadline:
            self._look_at_server()
            busy = (
                sum(len(course.processes) for course in courses if not course.over)
                + self._is_waiting()
            )
            for course in sorted(courses, key=lambda course: -len(course.shape.attempts)):
                # the longest way first
                if not course.over and not course.processes:
                    needed = course.shape.attempts[course.attempt + 1].replicas
                    if busy + needed <= cores and (
                        course.shape is REFERENCE or not self._is_waiting()
                    ):
                        busy += needed
                        self._start(course)
            for course in courses:
                if course.processes:
                    self._look(course)
                    if course.over:
                        on_end(course.shape.name)
            if courses[0].failed:
                break
            time.sleep(POLL_SECONDS)
        self.stop()
        return courses

    def stop(self) -> None:
        """End what still runs."""
        for course in self._courses:
            for process in course.processes:
                _end(process)
            course.processes.clear()

    def _prepared(self, shape: Shape) -> Path:
        folder = self._folder / shape.name.replace(" ", "-").replace(",", "")
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        return folder

    def _is_waiting(self) -> bool:
        """Does the server still import?"""
        return self._server is not None and not self._server.ready

    def _look_at_server(self) -> None:
        """If it is lost, what it has forked begins anew, without it."""
        if self._server is None:
            return
        self._server.listen()
        if self._server.lost:
            for course in self._courses:
                if any(isinstance(process, Fork) for process in course.processes):
                    self._begin_anew(course)
            self._server.close()
            self.remarks = [f"slower, for want of a fork server: {self._server.lost}"]
            self._server = None

    def _begin_anew(self, course: Course) -> None:
        self._close(course)
        self._prepared(course.shape)
        course.attempt, course.tries = -1, 1

    def _start(self, course: Course) -> None:
        course.attempt += 1
        attempt = course.shape.attempts[course.attempt]
        (course.folder / str(course.attempt + 1)).mkdir(exist_ok=True)
        port = _free_port()
        for rank in range(attempt.replicas):
            own_environ = self._own_environ(course, attempt, rank, port)
            if self._server is None or course.shape is REFERENCE:
                course.processes.append(
                    self._launched({**self._environ, **own_environ}, course.log_of(rank))
                )
                continue
            try:
                course.processes.append(
                    self._server.fork(self._program.arguments, own_environ, course.log_of(rank))
                )
            except ServerLost:
                self._begin_anew(course)
                break

    def _launched(self, environ: dict[str, str], path: Path) -> subprocess.Popen[bytes]:
        program = self._program
        with open(path, "wb") as log:
            try:
                return subprocess.Popen(
                    [*self._head, program.python, program.script, *program.arguments],
                    cwd=program.cwd,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(self._lifeline,),
                )
            except OSError as error:
                problem = f"{program.python} cannot be started here: {error.strerror}"
                raise GpqError(
                    problem, "--python PATH names an interpreter of this machine"
                ) from None

    def _own_environ(
        self, course: Course, attempt: Attempt, rank: int, port: int
    ) -> dict[str, str]:
        """What a replica has beyond the others."""
        folder = str(course.folder)
        order = course.shape.order(attempt, folder, self._steps, self._lifeline, self.exact)
        number = course.attempt + 1
        environ = {
            wire.ENV_CHECK: json.dumps(order._asdict()),
            wire.ENV_JOB: "0",
            wire.ENV_ATTEMPT: str(number),
            wire.ENV_RUN_DIR: str(course.folder / str(number)),
            wire.ENV_CHECKPOINT_DIR: str(course.folder / "checkpoints"),
            "RANK": str(rank),
            "WORLD_SIZE": str(attempt.replicas),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(attempt.replicas),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
        }
        if number > 1:
            environ[wire.ENV_RESUME] = "1"
        return environ

    def _look(self, course: Course) -> None:
        """Has its attempt ended? A replica that failed leaves the others waiting for it."""
        codes = [process.poll() for process in course.processes]
        failed_rank = next((rank for rank, code in enumerate(codes) if code), None)
        if failed_rank is not None and course.tries < TRIES and _taken(course, failed_rank):
            self._close(course)
            course.tries += 1
            course.attempt -= 1
        elif failed_rank is not None:
            code = codes[failed_rank] or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._fail(course, how, failed_rank)
        elif None not in codes:
            self._close(course)
            course.over = course.attempt + 1 == len(course.shape.attempts)

    def _fail(self, course: Course, how: str, rank: int) -> None:
        course.failed, course.log, course.over = how, str(course.log_of(rank)), True
        self._close(course)

    def _close(self, course: Course) -> None:
        for process in course.processes:
            _end(process)
        course.processes.clear()


def _end(process: Process) -> None:
    """Its whole session: loader workers, and whatever the script has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    """Not one that the system gives away by itself: it is taken seconds later, when the script has
    imported torch."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port


def _taken(course: Course, rank: int) -> bool:
    """Was the port somebody else's by then?"""
    return any("EADDRINUSE" in line for line in last_lines(str(course.log_of(rank))))


def last_lines(path: str) -> list[str]:
    """The end of what a process printed."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST_OF_A_LOG))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a terminal that goes are errors here, as Ctrl-C is: contexts close, and their
    processes end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def leave(number: int, _: object) -> None:
        raise Interrupted(number, "the check was ended; nothing of it still runs")

    for number in handlers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
