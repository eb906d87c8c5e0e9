"""`run(["status"], environment)`: gpq's command line in a process of its own, forked from one that has imported it.

A new interpreter for each command takes ten times as long. Where the environment would make another interpreter of
it, and for `daemon serve`, there is one all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import runpy
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

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpq.cli", "gpq.client", "gpq.views", "gpq.rpc")
# Variables that Python or its libraries read once, at their start.
EARLY = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "FORCE_COLOR",
    "PY_COLORS",
    "TERMINAL_WIDTH",
    "_TYPER",
    "GPQ_TEST_",
    "OPENBLAS",
)
READY = b"ready\n"
LENGTH = 8  # bytes of the length before a request


def run(
    argv: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with captured text and no input; raises TimeoutExpired, like it."""
    early = tuple(sorted(pair for pair in environment.items() if pair[0].startswith(EARLY)))
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(_server(os.getpid(), early))
    words = {"argv": argv, "environ": dict(environment), "cwd": str(cwd or os.getcwd()), "umask": _umask()}
    request = json.dumps(words).encode()
    out, out_child = os.pipe()
    err, err_child = os.pipe()
    with channel, open(out, "rb") as output, open(err, "rb") as errors, open(os.devnull, "rb") as nothing:
        descriptors = [nothing.fileno(), out_child, err_child]
        socket.send_fds(channel, [len(request).to_bytes(LENGTH, "big")], descriptors)
        os.close(out_child)
        os.close(err_child)
        channel.sendall(request)
        lines = channel.makefile()
        pid = int(lines.readline())
        texts = _read(output, errors, time.monotonic() + timeout)
        if texts is None:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, timeout)
        status = int(lines.readline())
    return subprocess.CompletedProcess(list(argv), os.waitstatus_to_exitcode(status), *texts)


def _umask() -> int:
    """Of this process; to ask for it by `os.umask` would be to change it under other threads."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _read(output: io.BufferedReader, errors: io.BufferedReader, deadline: float) -> tuple[str, str] | None:
    """All that both give until nobody holds their other ends; None where that takes too long."""
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
    """The socket of a server whose early variables are these. It ends with this process."""
    assert owner == os.getpid()
    folder = tempfile.TemporaryDirectory(prefix="gpq-commands-")
    atexit.register(folder.cleanup)
    environment = {"PATH": os.environ["PATH"], **dict(early)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    lifeline, held = os.pipe()
    place = os.path.join(folder.name, "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.commands", place, str(lifeline)],
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
        length, self.descriptors, _, _ = socket.recv_fds(channel, LENGTH, 3)
        size, data = int.from_bytes(length, "big"), b""
        while len(data) < size:
            piece = channel.recv(size - len(data))
            assert piece, "the client is gone"
            data += piece
        self.words = json.loads(data)


def _serve(listener: socket.socket, lifeline: int) -> _Request:
    """Returns in a command's process, with what was asked. The server itself ends with its client."""
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
    """Make this process what a new interpreter would be that runs the command. Its streams are the server's, whose
    descriptors are pipes, too."""
    for descriptor, place in zip(request.descriptors, range(3), strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
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
    importlib.import_module("tests.frozen")


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
    runpy.run_module("gpq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
