"""The queue of a running task-spooler, read and never touched: what `tsp` lists, and what its
waiting clients were called with.

The list joins the words of a command by blanks, and knows no directory. But a job that waits there
is a process: its `tsp`, which will run it, and whose words, directory and environment /proc has.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from dataclasses import dataclass, field

from gpq.errors import GpqError, NotFound

NAMES = ("tsp", "ts")
PATIENCE = 10.0  # seconds for one answer of it
ROW = re.compile(r"(\d+)\s+(queued|running|finished|skipped|allocating)\s+(\S+)\s+(.*)", re.DOTALL)
DETAILS = re.compile(r"(?:^|\n)Command: (.*)\nSlots required: (\d+)\nEnqueue time:", re.DOTALL)
DEPENDS = re.compile(r"\[(\d*)\]&& (.*)", re.DOTALL)
LABEL = re.compile(r"\[([^]]*)\](.*)", re.DOTALL)
WITH_VALUE = "LNDu"  # options of tsp before a command that take a value


@dataclass(frozen=True)
class Waiting:
    """A queued job. `argv`: None where no process of it was found, so that only `text` is known."""

    id: int
    text: str  # its words, joined by blanks
    label: str = ""
    after: int | None = None  # runs once that one has ended well
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
    """The jobs that wait, by number. Raises NotFound where no task-spooler is, or none runs,
    GpqError when it says nothing."""
    executable = program or _program()
    path = _socket()
    _alive(path)
    rows = [
        ROW.match(row)
        for row in re.split(r"\n(?=\d+ +[a-z]+ )", _ask(executable, "-l").partition("\n")[2])
    ]
    states = {int(row[1]): row[2] for row in rows if row}
    waiting = [
        _details(executable, number) for number in sorted(states) if states[number] == "queued"
    ]
    return Queue(
        executable,
        path,
        _with_processes(waiting, path),
        [number for number, state in states.items() if state == "running"],
    )


def _program() -> str:
    """The one that is task-spooler's: another program is called ts as well."""
    for name in NAMES:
        executable = shutil.which(name)
        if executable and "Task Spooler" in _ask(executable, "-V", check=False):
            return executable
    raise NotFound(
        "there is no task-spooler here",
        "tsp or ts has to be in PATH, on the machine that has its queue",
    )


def _socket() -> str:
    own = os.environ.get("TS_SOCKET")
    return own or os.path.join(os.environ.get("TMPDIR") or "/tmp", f"socket-ts.{os.getuid()}")


def _alive(path: str) -> None:
    """Raises NotFound unless a server listens: to ask without one would start it."""
    hint = "TS_SOCKET names the socket of another; a queue ends with its server"
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise NotFound(f"no task-spooler runs: {path} is no socket", hint)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PATIENCE)
            probe.connect(path)
    except OSError as error:
        raise NotFound(f"no task-spooler runs at {path}: {error.strerror or error}", hint) from None


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
            f"{program} {' '.join(words)} does not answer: {error}", "try it by hand"
        ) from None
    if check and result.returncode != 0:
        raise GpqError(
            f"{program} {' '.join(words)} ended with {result.returncode}", "try it by hand"
        )
    return result.stdout.decode("utf-8", "surrogateescape")


def _details(program: str, number: int) -> Waiting:
    match = DETAILS.search(_ask(program, "-i", str(number)))
    if match is None:
        raise GpqError(f"{program} -i {number} is not understood", "is it task-spooler 1.0?")
    text, after = match[1], None
    if depends := DEPENDS.fullmatch(text):
        after, text = int(depends[1]) if depends[1] else number - 1, depends[2]
    return Waiting(number, text, after=after, slots=int(match[2]))


def _with_processes(waiting: list[Waiting], path: str) -> list[Waiting]:
    """With words, directory and environment of the processes that wait; of equal commands the older
    one has the lower number."""
    clients = sorted(_clients(path), key=lambda client: client[0])
    jobs = []
    for job in waiting:
        match = next(
            (client for client in clients if " ".join(client[1].argv or []) == job.text), None
        )
        if match is None:
            jobs.append(job)
            continue
        clients.remove(match)
        client = match[1]
        jobs.append(
            Waiting(
                job.id,
                job.text,
                client.label,
                job.after,
                job.slots,
                client.argv,
                client.cwd,
                client.env,
            ),
        )
    return jobs


def _clients(path: str) -> list[tuple[int, Waiting]]:
    """(when it began, what it waits to run) of the user's processes that are called as task-spooler
    is, on this socket."""
    clients = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as stream:
                words = [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
            if not words or os.path.basename(words[0]) not in NAMES:
                continue
            with open(f"/proc/{name}/environ", "rb") as stream:
                pairs = [
                    os.fsdecode(pair).partition("=")
                    for pair in stream.read().split(b"\0")
                    if b"=" in pair
                ]
            env = {key: value for key, _, value in pairs}
            cwd = os.readlink(f"/proc/{name}/cwd")
            with open(f"/proc/{name}/stat", "rb") as stream:
                start_ticks = int(stream.read().rpartition(b")")[2].split()[19])
        except (OSError, ValueError):  # it is gone, or another user's
            continue
        socket_path = env.get("TS_SOCKET") or os.path.join(
            env.get("TMPDIR") or "/tmp", f"socket-ts.{os.getuid()}"
        )
        label, argv = _command(words[1:])
        if argv and os.path.realpath(os.path.join(cwd, socket_path)) == os.path.realpath(path):
            clients.append((start_ticks, Waiting(0, "", label, argv=argv, cwd=cwd, env=env)))
    return clients


def _command(words: list[str]) -> tuple[str, list[str]]:
    """(label, the command) behind the options of tsp; as getopt reads them, up to the first word
    that is none."""
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
