"""The client of `gpq_agent.train.prove.fork_server`: a forked replica does not need to import
torch.

A fault of the server is not an error of the check. `lost` says what happened, and the server's
replicas do not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 120.0  # seconds for its imports, and for any answer
POLL_SECONDS = 0.01
PARTING = 5.0  # seconds for the server to end on request
PROGRAM = """\
import sys
if sys.path[0] == "":
    sys.path[0] = sys.argv[3]  # as the script has it, before anything else is imported
from gpq_agent.train.prove.fork_server import main
main()
"""


class ServerLost(Exception):
    """The server is lost. Its replicas may still be running."""


class Fork:
    """A forked replica, with the methods of subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        self._server.listen()
        return self._server.codes.get(self.pid)

    def wait(self) -> None:
        """Wait for a killed process."""
        while self.poll() is None and not (self._server.lost and _is_gone(self.pid)):
            time.sleep(POLL_SECONDS)


class ForkServer:
    """The server process.

    ready: its imports are done.
    lost: why it cannot be used, or "".
    codes: how replicas ended, by process id.
    """

    def __init__(
        self,
        python: str,
        script: str,
        cwd: str,
        environ: Mapping[str, str],
        lifeline: int,
        log: Path,
        head: Sequence[str] = (),  # the environment of its command
    ) -> None:
        self.ready, self.lost = False, ""
        self.codes: dict[int, int] = {}
        self._log = log
        self._forked_pids: list[int] = []
        self._buffer = b""
        self._start = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel, server_end = socket.socketpair()
        folder = os.path.dirname(os.path.realpath(script))
        with server_end, open(log, "wb") as output:
            try:
                self._process = subprocess.Popen(
                    [*head, python, "-c", PROGRAM, script, str(server_end.fileno()), folder],
                    cwd=cwd,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lifeline, server_end.fileno()),
                )
            except OSError as error:
                self.lost = f"cannot start {python}: {error.strerror}"

    def fork(self, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> Fork:
        """Fork a replica. `environ`: what it has in addition to the server's. Raises ServerLost."""
        request = {"arguments": list(arguments), "environ": dict(environ), "log": str(log)}
        with contextlib.suppress(OSError):  # then no answer arrives either
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        self._forked_pids.clear()
        deadline = time.monotonic() + PATIENCE
        while not self._forked_pids:
            self.listen(PATIENCE)
            if time.monotonic() > deadline:
                self._lose(f"it did not answer for {PATIENCE:.0f} s")
            if self.lost:
                raise ServerLost
        return Fork(self, self._forked_pids.pop())

    def listen(self, seconds: float = 0.0) -> None:
        """Read what the server has said. Wait at most `seconds` for it."""
        while not self.lost and select.select([self._channel], [], [], seconds)[0]:
            seconds = 0.0
            try:
                data = self._channel.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._lose(self._how_it_ended())
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                word, *details = json.loads(line)
                if word == "ready":
                    self.ready = True
                elif word == "refused":
                    self._lose(str(details[0]))
                elif word == "forked":
                    self._forked_pids.append(details[0])
                elif word == "ended":
                    self.codes[details[0]] = details[1]
        if not self.ready and not self.lost and time.monotonic() > self._start + PATIENCE:
            self._lose(f"it was not ready within {PATIENCE:.0f} s")

    def close(self) -> None:
        """Make it end its forks and itself."""
        self._channel.close()
        if self._process is not None:
            if self.ready:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(PARTING)
            self._process.kill()
            self._process.wait()

    def _lose(self, reason: str) -> None:
        self.lost = reason
        if self._process is not None:
            self._process.kill()

    def _how_it_ended(self) -> str:
        """How it ended, with its last line."""
        assert self._process is not None
        code = self._process.wait()
        last_line = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2].strip()
        return f"it ended with {ending(code)}{last_line and f' ({last_line[:200]})'}"


def ending(code: int) -> str:
    """How a process ended, from the code that subprocess gives it."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _is_gone(pid: int) -> bool:
    """Has the process ended? Only its parent can wait for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")
