"""The command's end of the socket: one request, one answer. Raises the daemon's error as the class
that it had there."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gpq import paths
from gpq.client.quick import refuse_stranger
from gpq.errors import DaemonUnreachable
from gpq.rpc import codec
from gpq.rpc.requests import Request

R = TypeVar("R", bound=msgspec.Struct)

RETRY_SECONDS = 5.0
SLICE_SECONDS = 0.25
ANSWER_SECONDS = 60.0  # on top of the seconds that the request itself waits
TRIES = 5  # per request, if one daemon after another goes away during it
PAUSE_SECONDS = 0.5  # between two tries


class HungUp(DaemonUnreachable):
    """The daemon went away during a request. The next daemon may answer it."""


class Connection:
    """An open connection. You may use `call` many times, one after the other."""

    def __init__(self, path: str | None = None) -> None:
        """Raises OSError if no daemon listens, and Refused if it is another user's."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.connect(path or paths.socket())
            refuse_stranger(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._rest = b""

    def call(self, request: Request, kind: type[R]) -> R:
        """The result. Raises the daemon's GpqError, or DaemonUnreachable if it does not answer."""
        line = codec.encode_request(request)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            with contextlib.suppress(BrokenPipeError):  # it may have given the reason before
                self._socket.sendall(line)
            answer = self._read_line(ANSWER_SECONDS + float(getattr(request, "wait", 0.0)))
        except TimeoutError:
            raise DaemonUnreachable("the daemon does not answer", "see `gpq daemon logs`") from None
        except OSError as error:
            raise HungUp(f"the daemon hung up: {error.strerror or error}", "try again") from None
        return codec.decode_answer(answer, kind)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_line(self, seconds: float = ANSWER_SECONDS) -> bytes:
        """Waits in slices, because Python handles a Ctrl-C that comes just before the system call
        only after it."""
        until = time.monotonic() + seconds
        pieces = [self._rest]
        self._socket.settimeout(SLICE_SECONDS)
        while b"\n" not in pieces[-1]:
            try:
                piece = self._socket.recv(262_144)
            except TimeoutError:
                if time.monotonic() > until:
                    raise
                continue
            if not piece:
                raise HungUp(
                    "the daemon hung up before it answered", "try again: nothing it did is lost"
                )
            pieces.append(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line


def connect(*, start: bool = True, quiet: bool = False) -> Connection:
    """A connection to the daemon. With `start`, starts one if none runs. Raises
    DaemonUnreachable."""
    until = time.monotonic() + RETRY_SECONDS
    late = False
    while True:
        try:
            return Connection()
        except OSError as error:
            problem = error
        if late:
            raise DaemonUnreachable(
                f"cannot reach the daemon's socket {paths.socket()}: {problem.strerror or problem}",
                "see `gpq daemon status` and `gpq daemon logs`",
            )
        if start:
            # imported here, because its imports cost more than a whole request
            from gpq.client.autostart import ensure_daemon

            ensure_daemon(quiet=quiet)
        elif isinstance(problem, (FileNotFoundError, ConnectionRefusedError)):
            raise DaemonUnreachable("the daemon is not running", "start it with `gpq daemon start`")
        # one more try, because a slow start may be complete now
        late = time.monotonic() > until
        time.sleep(0.02)


def call(request: Request, kind: type[R], *, start: bool = True) -> R:
    """Send the daemon one request. Raises GpqError."""
    with contextlib.closing(connect(start=start)) as connection:
        return connection.call(request, kind)


class Lasting:
    """A connection that survives the end of a daemon, for requests that may be sent twice.

    If a daemon goes away, it starts the next one and sends the request again, with the rest of the
    request's `wait`. It calls `note` once for each request. `quiet` writes nothing else, because
    the terminal shows a picture.
    """

    def __init__(self, note: Callable[[str], None], *, quiet: bool = False) -> None:
        self._note, self._quiet = note, quiet
        self._connection: Connection | None = None

    def call(self, request: Request, kind: type[R]) -> R:
        """As `Connection.call`. Raises the error that keeps a daemon from starting, and HungUp
        after `TRIES` tries."""
        wait = float(getattr(request, "wait", 0.0))
        until = time.monotonic() + wait
        tries = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = connect(quiet=self._quiet)
                return self._connection.call(request, kind)
            except HungUp as error:
                self.close()
                tries += 1
                if tries == TRIES:
                    raise
                if tries == 1:
                    self._note(f"{error.message}, asking again")
            time.sleep(PAUSE_SECONDS * (tries - 1))
            if wait:
                request = msgspec.structs.replace(request, wait=max(until - time.monotonic(), 0.0))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Lasting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
