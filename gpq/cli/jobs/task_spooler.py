"""Reads the queue of a running task-spooler without changing it: what `tsp` lists, and the commands
of its waiting clients.

The list joins the words of a command with spaces and has no directories. But every waiting job is a
process: the `tsp` that will run it. /proc has its words, directory and environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import psutil

from gpq.errors import GpqError, NotFound

NAMES = ("tsp", "ts")
PATIENCE = 10.0  # seconds for one answer of tsp
ROW = re.compile(r"(\d+)\s+(queued|running|finished|skipped|allocating)\s+(\S+)\s+(.*)", re.DOTALL)
DETAILS = re.compile(r"(?:^|\n)Command: (.*)\nSlots required: (\d+)\nEnqueue time:", re.DOTALL)
DEPENDS = re.compile(r"\[(\d*)\]&& (.*)", re.DOTALL)
WITH_VALUE = "LNDu"  # options of tsp with a value, before a command


@dataclass(frozen=True)
class Waiting:
    """A queued job. `argv` is None if it has no process, so that only `text` is known."""

    id: int
    text: str  # its words, joined by spaces
    label: str = ""
    after: int | None = None  # runs after that job has succeeded
    slots: int = 1
    argv: list[str] | None = None
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    program: str
    socket: str
    waiting: list[Waiting]
    running: list[int]


def queue(program: str = "") -> Queue:
    """The waiting jobs, by number. Raises NotFound if task-spooler is not installed or not running,
    and GpqError if it does not answer."""
    executable = program or _program()
    path = _socket_of(os.environ)
    _alive(path)
    listing = _ask(executable, "-l")
    # Words of a command may contain line breaks.
    rows = re.split(r"\n(?=\d+ +[a-z]+ )", listing.partition("\n")[2])
    states = {int(match[1]): match[2] for match in map(ROW.match, rows) if match}
    waiting = [
        _details(executable, number) for number in sorted(states) if states[number] == "queued"
    ]
    running = [number for number, state in states.items() if state == "running"]
    return Queue(executable, path, _with_processes(waiting, path), running)


def _program() -> str:
    """The program of task-spooler. Another program is called ts too."""
    for name in NAMES:
        executable = shutil.which(name)
        if executable and "Task Spooler" in _ask(executable, "-V", check=False):
            return executable
    raise NotFound(
        "task-spooler is not installed here",
        "run this on the machine with its queue, with tsp or ts in PATH",
    )


def _socket_of(env: Mapping[str, str]) -> str:
    folder = env.get("TMPDIR") or "/tmp"
    return env.get("TS_SOCKET") or os.path.join(folder, f"socket-ts.{os.getuid()}")


def _alive(path: str) -> None:
    """Raises NotFound unless a server listens. Asking without a server would start one."""
    hint = "set TS_SOCKET if it uses another socket"
    try:
        status = os.lstat(path)  # not where a link leads, because its owner may change that
        if not stat.S_ISSOCK(status.st_mode):
            raise NotFound(f"task-spooler does not run: {path} is not a socket", hint)
        if status.st_uid != os.geteuid():
            raise NotFound(f"task-spooler at {path} belongs to another user", hint)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PATIENCE)
            probe.connect(path)
    except OSError as error:
        raise NotFound(
            f"task-spooler does not run at {path}: {error.strerror or error}", hint
        ) from None


def _ask(program: str, *words: str, check: bool = True) -> str:
    try:
        result = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpqError(
            f"{program} {' '.join(words)} does not answer: {error}", "try this command by hand"
        ) from None
    if check and result.returncode != 0:
        raise GpqError(
            f"{program} {' '.join(words)} failed with exit code {result.returncode}",
            "try this command by hand",
        )
    return result.stdout.decode("utf-8", "surrogateescape")


def _details(program: str, number: int) -> Waiting:
    match = DETAILS.search(_ask(program, "-i", str(number)))
    if match is None:
        raise GpqError(
            f"cannot read the output of {program} -i {number}", "gpq knows task-spooler 1.0"
        )
    text, after = match[1], None
    if depends := DEPENDS.fullmatch(text):
        after, text = int(depends[1]) if depends[1] else number - 1, depends[2]
    return Waiting(number, text, after=after, slots=int(match[2]))


def _with_processes(waiting: list[Waiting], path: str) -> list[Waiting]:
    """Add words, directory and environment of the waiting processes. Among equal commands, the
    older process has the lower number."""
    clients = _clients(path)
    clients.sort(key=lambda client: client.began_at)
    jobs = []
    for job in waiting:
        client = next((client for client in clients if " ".join(client.argv) == job.text), None)
        if client is not None:
            clients.remove(client)
            job = replace(job, label=client.label, argv=client.argv, cwd=client.cwd, env=client.env)
        jobs.append(job)
    return jobs


@dataclass(frozen=True)
class _Client:
    """A process with the name of task-spooler, and the command that it waits to run."""

    began_at: float
    label: str
    argv: list[str]
    cwd: str
    env: dict[str, str]

    def uses(self, path: str) -> bool:
        own = os.path.join(self.cwd, _socket_of(self.env))
        return os.path.realpath(own) == os.path.realpath(path)


def _clients(path: str) -> list[_Client]:
    """The waiting clients of this user on this socket."""
    clients = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it is gone, or another user's
            program, *words = process.cmdline() or [""]
            if os.path.basename(program) in NAMES:
                label, argv = _command(words)
                env, cwd = process.environ(), process.cwd()
                clients.append(_Client(process.create_time(), label, argv, cwd, env))
    return [client for client in clients if client.argv and client.uses(path)]


def _command(words: list[str]) -> tuple[str, list[str]]:
    """(label, the command) after the options of tsp. Options are read as getopt does, up to the
    first other word."""
    label, tail = "", list(words)
    while tail and tail[0].startswith("-") and tail[0] != "-":
        word = tail.pop(0)
        if word == "--":
            break
        for place, letter in enumerate(word[1:], 1):
            if letter in WITH_VALUE:
                value = word[place + 1 :] or (tail.pop(0) if tail else "")
                label = value if letter == "L" else label
                break
    return label, tail
