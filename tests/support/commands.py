"""gpq's command line and daemon in processes of their own, forked from an interpreter that has imported them.

A new interpreter for each takes ten times as long. `run(["status"], environment)` behaves like subprocess.run, and
`start_daemon` like subprocess.Popen. An environment that would change the interpreter gets another interpreter to fork
from.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

ROOT = Path(__file__).parents[2]
PACKAGES = ("gpq.cli", "gpq.client", "gpq.views", "gpq.rpc", "gpq.daemon")
COMMAND, DAEMON = "gpq.__main__", "gpq.daemon.main"  # the one whose `main` runs
# Variables that Python or its libraries read once, when they start.
LOCALE = ("LC_", "LANG", "TERMINAL_WIDTH", "FORCE_COLOR", "PY_COLORS", "_TYPER")
EARLY = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "GPQ_TEST_", *LOCALE)
READY = b"ready\n"
LENGTH = 8  # bytes of the length that precedes a request
MOST = 8  # descriptors
FREE = 100  # descriptors from here on belong to nobody


class Process:
    """A forked process, with the interface of subprocess.Popen."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._answers = channel.makefile()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            if poll.poll(None if timeout is None else timeout * 1000.0):
                self.returncode = os.waitstatus_to_exitcode(int(self._answers.readline()))
                self._answers.close()
                self._channel.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    module: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
    *,
    cwd: str = "",
    session: bool = False,
) -> Process:
    """`main` of this module. `descriptors` maps numbers to descriptors and has at least 0 to 2."""
    early = tuple(sorted(pair for pair in environment.items() if pair[0].startswith(EARLY)))
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(_server(os.getpid(), early))
    words = {
        "module": module, "argv": list(argv), "environ": dict(environment), "cwd": cwd or os.getcwd(), "umask": _umask(),
        "session": session, "places": list(descriptors),
    }  # fmt: skip
    request = json.dumps(words).encode()
    socket.send_fds(channel, [len(request).to_bytes(LENGTH, "big")], list(descriptors.values()))
    channel.sendall(request)
    return Process(channel)


def start_daemon(
    environment: Mapping[str, str], output: int, ready: int, *, cwd: str = "", session: bool = False
) -> Process:
    """The daemon prints to `output`. On `ready` it says that it serves, or why not. Both are descriptors."""
    with open(os.devnull, "rb") as nothing:
        places = {0: nothing.fileno(), 1: output, 2: output, ready: ready}
        return start(DAEMON, ["--ready-fd", str(ready)], environment, places, cwd=cwd, session=session)


def run(
    argv: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run with captured text and no input. Raises TimeoutExpired, as that does."""
    out, out_child = os.pipe()
    err, err_child = os.pipe()
    with open(out, "rb") as output, open(err, "rb") as errors:
        with open(os.devnull, "rb") as nothing:
            places = {0: nothing.fileno(), 1: out_child, 2: err_child}
            process = start(COMMAND, argv, environment, places, cwd=str(cwd or ""))
        os.close(out_child)
        os.close(err_child)
        texts = _read(output, errors, time.monotonic() + timeout)
        if texts is None:
            process.kill()
            process.wait()
            raise subprocess.TimeoutExpired(list(argv), timeout)
    return subprocess.CompletedProcess(list(argv), process.wait(), *texts)


def _umask() -> int:
    """The umask of this process. `os.umask` would have to change it, which other threads would see."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _read(output: io.BufferedReader, errors: io.BufferedReader, deadline: float) -> tuple[str, str] | None:
    """All output of both, until nobody holds their other ends. None if that takes too long."""
    pieces: dict[int, list[bytes]] = {output.fileno(): [], errors.fileno(): []}
    with selectors.DefaultSelector() as pending:
        for descriptor in pieces:
            pending.register(descriptor, selectors.EVENT_READ)
        while pending.get_map():
            ready = pending.select(deadline - time.monotonic())
            if not ready:
                return None
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                if piece:
                    pieces[key.fd].append(piece)
                else:
                    pending.unregister(key.fd)
    first, second = ("".join(io.TextIOWrapper(io.BytesIO(b"".join(parts)), "utf-8")) for parts in pieces.values())
    return first, second


@functools.cache
def _server(owner: int, early: tuple[tuple[str, str], ...]) -> str:
    """The socket of a server with these early variables. The server ends with this process."""
    assert owner == os.getpid()
    folder = tempfile.TemporaryDirectory(prefix="gpq-commands-")
    atexit.register(folder.cleanup)
    environment = {"PATH": os.environ["PATH"], **dict(early)}
    environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), str(ROOT)])
    lifeline, held = os.pipe()
    place = os.path.join(folder.name, "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.commands", place, str(lifeline)],
        env=environment, cwd=folder.name, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, pass_fds=[lifeline],
    )  # fmt: skip
    os.close(lifeline)
    assert server.stdout is not None
    first = server.stdout.readline()
    assert first == READY, first + server.stdout.read()
    atexit.register(functools.partial(_end, server, held))
    return place


def _end(server: subprocess.Popen[bytes], held: int) -> None:
    os.close(held)
    server.wait()


# -- the server --------------------------------------------------------------------------------------------------------


class _Request:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        length, self.descriptors, _, _ = socket.recv_fds(channel, LENGTH, MOST)
        size, data = int.from_bytes(length, "big"), b""
        while len(data) < size:
            piece = channel.recv(size - len(data))
            assert piece, "the client is gone"
            data += piece
        self.words = json.loads(data)


def _serve(listener: socket.socket, lifeline: int) -> _Request:
    """Returns in the process of a command, with its request. The server itself ends with its client."""
    events = selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    events.register(lifeline, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is lifeline:
                os._exit(0)
            if key.fileobj is not listener:
                pid, channel = key.data
                status = os.waitpid(pid, 0)[1]
                with channel, contextlib.suppress(OSError):  # a client may have lost patience
                    channel.sendall(f"{status}\n".encode())
                events.unregister(key.fd)
                os.close(key.fd)
                continue
            request = _Request(listener.accept()[0])
            pid = os.fork()
            if not pid:
                _close(events)
                return request
            for descriptor in request.descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                request.channel.sendall(f"{pid}\n".encode())
            events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, request.channel))


def _close(events: selectors.BaseSelector) -> None:
    for key in list(events.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
        if key.data is not None:
            key.data[1].close()
    events.close()


def _become(request: _Request) -> None:
    """Make this process what a new interpreter that runs the command would be.

    Its streams are those of the server, whose descriptors are pipes too.
    """
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, FREE) for descriptor in request.descriptors]
    for descriptor in request.descriptors:
        os.close(descriptor)
    for descriptor, place in zip(moved, request.words["places"], strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    if request.words["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request.words["environ"])
    os.chdir(request.words["cwd"])
    os.umask(request.words["umask"])
    time.tzset()
    sys.path[0] = request.words["cwd"]
    sys.argv[1:] = request.words["argv"]


def _import_all() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            importlib.import_module(module.name)
    parser = typer.Typer()
    parser.command()(_parsed)
    parser(["--number", "1"], standalone_mode=False)  # typer imports half of itself only here
    importlib.import_module("tests.support.frozen")


def _parsed(number: int = 0) -> None:
    """Nothing."""


def main() -> None:
    _import_all()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    os.write(1, READY)
    request = _serve(listener, int(sys.argv[2]))
    request.channel.close()
    _become(request)
    if request.words["module"] == COMMAND:
        runpy.run_module("gpq", run_name="__main__", alter_sys=True)
    sys.exit(importlib.import_module(DAEMON).main(request.words["argv"]))


if __name__ == "__main__":
    main()
