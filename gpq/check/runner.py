"""Runs the script in its shapes, side by side if there are enough cores. No process outlives the
command, and all write to one scratch folder.

Each replica has a session of its own that ends as a whole. It holds a pipe to this process, and
ends itself when the pipe closes. The reference runs in an interpreter of its own, and the others
are forks of another one. So anything that depends on memory addresses still differs from the
reference, as between two attempts of a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gpq_agent
from gpq_agent import wire

from gpq.check.fork_server import Fork, ForkServer, ServerLost, ending
from gpq.check.shapes import REFERENCE, Attempt, Shape
from gpq.errors import GpqError

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_000)
POLL_SECONDS = 0.02
TRIES = 3  # of an attempt whose port was taken
LAST_LINES = 12
MOST_OF_A_LOG = 1 << 16  # bytes to read at the end of a log
Process = subprocess.Popen[bytes] | Fork
LANDLOCK = Path(gpq_agent.__file__).parent / "train" / "prove" / "landlock.py"
SCRATCH = "tmp"  # below the folder of the check
# Sockets with names of 36 characters are made there, and their path may have 107 characters.
LONGEST = 70
LINKS = Path("/tmp")  # used if the path is short
LINK = "link"  # next to it, for the link
FOLDERS = {
    "TMPDIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}
# A check is not an experiment. Xet is a program of Huggingface that writes past Python.
FIXED = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_XET": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to run. `environ`: its environment without the shape's variables."""

    script: str
    arguments: tuple[str, ...]
    python: str
    environ: Mapping[str, str]
    cwd: str
    steps: int
    seconds: float  # for the whole check
    gpu: bool = False
    isolated: bool = False  # a new interpreter for every replica


class Runner:
    """A context. At its end everything that it started is gone.

    exact: does the script run in full precision?
    remarks: what to tell the user about the way it ran.
    """

    def __init__(self, request: CheckRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._environ = dict(request.environ)
        # The start of every process's command. It can then only write below `folder`, if this Linux
        # can enforce that.
        self._head = [request.python, "-I", str(LANDLOCK), str(folder)]
        if not request.gpu:
            self._environ |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        self._courses: list[ShapeRun] = []
        self._server: ForkServer | None = None
        self.remarks: list[str] = []
        self.exact = True
        self._lifeline, self._lifeline_end = os.pipe()

    def __enter__(self) -> Runner:
        request = self._request
        if request.script.endswith(".py") and not request.isolated:
            log = self._folder / "fork-server.log"
            self._server = ForkServer(
                request.python,
                request.script,
                request.cwd,
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
    ) -> list[ShapeRun]:
        """Run all shapes to their ends, or until the first one fails or `deadline` (monotonic
        seconds) passes. Then the rest is stopped, and counts as not over. `on_end` is called for
        each."""
        courses = [ShapeRun(shape, self._prepare(shape)) for shape in shapes]
        self._courses += courses
        while not all(course.over for course in courses) and time.monotonic() < deadline:
            self._look_at_server()
            self._start_what_fits(courses)
            for course in courses:
                if course.processes:
                    course.look()
                    if course.over:
                        on_end(course.shape.name)
            if courses[0].failed:
                break
            time.sleep(POLL_SECONDS)
        self.stop()
        return courses

    def stop(self) -> None:
        """End the remaining processes."""
        for course in self._courses:
            course.close()

    def _start_what_fits(self, courses: Sequence[ShapeRun]) -> None:
        """Start shapes on the free cores, the longest first. The reference needs no server."""
        cores = max(2, len(os.sched_getaffinity(0)))
        busy = sum(len(course.processes) for course in courses if not course.over)
        busy += self._is_waiting()
        for course in sorted(courses, key=lambda course: -len(course.shape.attempts)):
            if course.over or course.processes:
                continue
            replicas = course.shape.attempts[course.attempt + 1].replicas
            can_start = course.shape is REFERENCE or not self._is_waiting()
            if can_start and busy + replicas <= cores:
                busy += replicas
                self._start(course)

    def _prepare(self, shape: Shape) -> Path:
        folder = self._folder / shape.name.replace(" ", "-").replace(",", "")
        shutil.rmtree(folder, ignore_errors=True)  # from an earlier run
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        return folder

    def _is_waiting(self) -> bool:
        """Is the server still importing?"""
        return self._server is not None and not self._server.ready

    def _look_at_server(self) -> None:
        """If the server is lost, start its forks again without it."""
        if self._server is None:
            return
        self._server.listen()
        if self._server.lost:
            for course in self._courses:
                if any(isinstance(process, Fork) for process in course.processes):
                    self._begin_anew(course)
            self._server.close()
            self.remarks = [
                f"the check was slower, because it had no fork server: {self._server.lost}"
            ]
            self._server = None

    def _begin_anew(self, course: ShapeRun) -> None:
        course.close()
        self._prepare(course.shape)
        course.attempt, course.tries = -1, 1

    def _start(self, course: ShapeRun) -> None:
        course.attempt += 1
        attempt = course.shape.attempts[course.attempt]
        (course.folder / str(course.attempt + 1)).mkdir(exist_ok=True)
        port = _free_port()
        for rank in range(attempt.replicas):
            environ = self._own_environ(course, attempt, rank, port)
            try:
                course.processes.append(self._replica(course, environ, rank))
            except ServerLost:
                self._begin_anew(course)
                break

    def _replica(self, course: ShapeRun, environ: dict[str, str], rank: int) -> Process:
        """Start a replica. `environ`: what it has in addition to the others. Raises ServerLost."""
        request, path = self._request, course.log_of(rank)
        if self._server is not None and course.shape is not REFERENCE:
            return self._server.fork(request.arguments, environ, path)
        with open(path, "wb") as log:
            try:
                return subprocess.Popen(
                    [*self._head, request.python, request.script, *request.arguments],
                    cwd=request.cwd,
                    env={**self._environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(self._lifeline,),
                )
            except OSError as error:
                problem = f"cannot start {request.python} here: {error.strerror}"
                raise GpqError(
                    problem, "use --python PATH with an interpreter of this machine"
                ) from None

    def _own_environ(
        self, course: ShapeRun, attempt: Attempt, rank: int, port: int
    ) -> dict[str, str]:
        """The variables that only this replica has."""
        folder = str(course.folder)
        order = course.shape.order(attempt, folder, self._request.steps, self._lifeline, self.exact)
        number = course.attempt + 1
        environ = {
            wire.ENV_CHECK: json.dumps(order._asdict()),
            wire.ENV_JOB: "0",
            wire.ENV_ATTEMPT: str(number),
            wire.ENV_RUN_DIR: str(course.folder / str(number)),
            wire.ENV_MEETING: str(course.folder / str(number) / "meeting"),
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


def _free_port() -> int:
    """A port that the system does not assign by itself. It is used only seconds later, when the
    script has imported torch."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port


@dataclass
class ShapeRun:
    """One shape on its way. `attempt` is the index of the current one, -1 before the first."""

    shape: Shape
    folder: Path
    attempt: int = -1
    processes: list[Process] = field(default_factory=list)
    failed: str = ""  # why it did not finish
    log: str = ""  # the log of the process that failed
    over: bool = False
    tries: int = 1

    def log_of(self, rank: int) -> Path:
        """The log of a replica of the current or last attempt."""
        return self.folder / f"{self.attempt + 1}.{rank}.log"

    def error(self) -> str:
        """The last line of the process that failed."""
        line = " ".join(last_lines(self.log)[-1:])
        return line.removeprefix("[rank0]: ") or self.failed

    def look(self) -> None:
        """Has its attempt ended? If one replica fails, the others would wait for it."""
        codes = [process.poll() for process in self.processes]
        failures = [(rank, code) for rank, code in enumerate(codes) if code]
        if failures:
            rank, code = failures[0]
            path = str(self.log_of(rank))
            if self.tries < TRIES and any("EADDRINUSE" in line for line in last_lines(path)):
                # Another process had the port by then.
                self.tries += 1
                self.attempt -= 1
            else:
                self.failed, self.log, self.over = ending(code), path, True
            self.close()
        elif None not in codes:
            self.close()
            self.over = self.attempt + 1 == len(self.shape.attempts)

    def close(self) -> None:
        """End the sessions of its remaining processes: loader workers, and everything that the
        script started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()


def last_lines(path: str) -> list[str]:
    """The end of a process's output."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST_OF_A_LOG))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]


def variables(home: Path) -> dict[str, str]:
    """Variables that override the shell's. Creates the folder."""
    folder = home / SCRATCH
    folder.mkdir(exist_ok=True)
    if len(os.fsencode(folder)) > LONGEST:
        link = LINKS / f"gpq-{secrets.token_hex(8)}"
        (home / LINK).symlink_to(link)  # first, so that tidying up finds it
        link.symlink_to(folder)
        folder = link
    paths = {name: str(folder / subfolder) for name, subfolder in FOLDERS.items()}
    return {**FIXED, **paths, "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}"}


def tidy(home: Path) -> None:
    """Remove what is outside of `home`."""
    with contextlib.suppress(OSError):
        os.unlink(os.readlink(home / LINK))
