"""What every connector offers, a byte pipe to a server, and the daemon's own machine as a server:
the agent is a child process in its own session. It may complain without end, so gpq keeps the last
of what it writes to stderr."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from gpq.connectors import environment
from gpq.errors import GpqError
from gpq.folders import not_through_links

MOST_WORDS = 4096  # bytes to look at for the last words
RING = 64 << 10  # bytes of the file that remain when it is cut, at twice this size
PAUSE = 0.02  # seconds after so many bytes at once: a flood slows its own server
LAST_PATIENCE = 0.5  # seconds for the last words to come, if something else holds the pipe
LONGEST_LINE = 300  # characters of the last complaint
CLOSE_PATIENCE = 5.0  # seconds that a process has to end after its input was closed


class Channel(Protocol):
    """Two byte streams to one process on a server. Reading gives b"" when that process or the
    connection is gone."""

    @property
    def reader(self) -> BinaryIO:
        """The output of the process."""

    @property
    def writer(self) -> BinaryIO:
        """The input of the process, unbuffered. Raises BrokenPipeError when the process is gone."""

    def last_words(self) -> str:
        """The last line that the process complained of, or "". For when it has ended."""

    def close(self) -> None:
        """End the process: closes its input, which the process takes as the end, and does not wait
        for ever. May be repeated."""


class Connector(Protocol):
    """A way to one server."""

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        """Run the agent of this gpq there, with these arguments. It outlives us only if it wants
        to. Raises GpqError.

        If connecting takes a while, it calls `waiting` now and then. If `waiting` raises, the
        attempt ends. Raises Refused if trying again soon is useless.
        """


class LocalChannel:
    """Pipes to a child process of `start`. Its complaints go to the file `errors`."""

    patience = CLOSE_PATIENCE

    def __init__(self, process: subprocess.Popen[bytes], errors: Path | None) -> None:
        self.process = process
        self.complaints = Complaints(process.stderr, errors)  # type: ignore[arg-type]
        self.reader: BinaryIO = process.stdout  # type: ignore[assignment]
        self.writer: BinaryIO = process.stdin  # type: ignore[assignment]

    def last_words(self) -> str:
        return last_line(self.complaints.last())

    def close(self) -> None:
        """Close both pipes and collect the process. If it does not end, kill it. Jobs survive,
        because shims own them."""
        with contextlib.suppress(OSError):  # it was already gone
            self.writer.close()
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.reader.close()

    def kill(self) -> None:
        self.process.kill()


class LocalConnector:
    """`errors` is the file for the agent's complaints, or None to drop them. `environ` is the
    environment from which the agent gets a part, by default our own. `python` runs the agent, by
    default our own."""

    def __init__(
        self, errors: Path | None = None, environ: Mapping[str, str] | None = None, python: str = ""
    ) -> None:
        self.errors = errors
        self.python = [python] if python else environment.interpreter()
        self.environ = environment.of_agent(os.environ if environ is None else environ)

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        return self.spawn([*self.python, "-m", "gpq_agent.node", *arguments])

    def spawn(self, argv: Sequence[str]) -> Channel:
        """Run a command."""
        process = start(argv, self.environ, self.errors, "check the Python installation")
        return LocalChannel(process, self.errors)


def last_line(text: str) -> str:
    """That is not blank. Only its begin if it is long."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[:LONGEST_LINE] if lines else ""


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    errors: Path | None,
    hint: str,
    ends: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """A process with pipes, in its own session, so that Ctrl-C and the end of a terminal do not
    reach it. In /, so that no file in the current folder counts as a module. `ends`: its input and
    its output.

    Raises GpqError with this hint. Raises OSError if the folder of `errors` is gone, so that
    nothing starts for a daemon that has lost its state directory.
    """
    if errors is not None:
        os.close(not_through_links(str(errors), os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    try:
        return subprocess.Popen(
            argv,
            stdin=ends,
            stdout=ends,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environ,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise GpqError(f"cannot start {argv[0]}: {error.strerror}", hint) from error


class Complaints:
    """Reads `stream` to its end in a thread. The last part goes to `file`, after those of earlier
    connections. None: it is dropped."""

    def __init__(self, stream: BinaryIO, file: Path | None) -> None:
        self._stream = stream
        self._file = file
        self._last = b""
        self._thread = threading.Thread(target=self._read, name="complaints", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last MOST_WORDS bytes. For when the process has ended."""
        self._thread.join(LAST_PATIENCE)
        return self._last.decode("utf-8", "replace")

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), RING):
                self._last = (self._last + chunk)[-MOST_WORDS:]
                if self._file is not None:
                    with contextlib.suppress(OSError):  # a full disk must not stop the server
                        _append(self._file, chunk)
                if len(chunk) == RING:
                    time.sleep(PAUSE)


def _append(file: Path, chunk: bytes) -> None:
    with open(file, "ab+", opener=not_through_links) as stream:
        stream.write(chunk)
        if stream.tell() > 2 * RING:
            stream.seek(-RING, os.SEEK_END)
            rest = stream.read()
            stream.truncate(0)
            stream.write(rest)
