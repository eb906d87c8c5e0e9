"""What was decided, when, and by whom: an append-only file of JSON lines, each with the digest of
all that is before it. So a change of the past shows in the next line.

{"at": ISO 8601 in UTC, "what": a word, ..., "before": SHA-256 of the file up to this line, in hex}

A crash or a full disk may leave a piece of a line, which is no record but counts in digests. A file
of `MOST` bytes is renamed, in place of the one that was renamed before. The first line of the next
file has the digest of the renamed one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone

from gpq_agent import wire

from gpq.arbiter import files

MOST = 1 << 25  # bytes of a file, and a line
PIECE = 1 << 20  # bytes that are read at once
NOTHING = hashlib.sha256().hexdigest()
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Audit:
    """One process at a time may append."""

    def __init__(self, path: str) -> None:
        """Reads the file, and makes it if there is none. Raises Refused."""
        self._path, self._older = path, f"{path}.1"
        self._lock = threading.Lock()
        self._size, self._state = 0, hashlib.sha256()
        with self._file() as descriptor:
            self._follow(descriptor)
        self._first = NOTHING
        if not self._size and os.path.exists(self._older):
            with open(self._older, "rb") as stream:
                self._first = hashlib.sha256(stream.read()).hexdigest()

    @property
    def digest(self) -> str:
        """What the next line says of those before it."""
        return self._state.hexdigest() if self._size else self._first

    def append(self, what: str, **fields: object) -> None:
        """Durably, from any thread. Raises Refused if the disk is full."""
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with self._lock, self._file() as descriptor:
            try:
                if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
                    _write(descriptor, b"\n")
                    self._follow(descriptor)
                line = wire.encode({"at": at, "what": what, **fields, "before": self.digest})
                # the one control character that JSON allows
                _write(descriptor, line.replace(b"\x7f", rb"\u007f"))
                os.fsync(descriptor)
            finally:
                self._follow(descriptor)
            if self._size >= MOST:
                os.replace(self._path, self._older)
                self._first, self._size, self._state = self.digest, 0, hashlib.sha256()

    def read(self, count: int) -> tuple[list[str], int]:
        """The `count` newest lines, the oldest of them first. And the number of the first line,
        from 1 in the older file, that does not follow from those before, 0 if all do. Only the
        newest `digest` proves the last line. Raises Refused."""
        with self._lock, self._file() as descriptor:
            streams = [os.fdopen(os.dup(descriptor), "rb")]
            with contextlib.suppress(FileNotFoundError):
                streams.insert(0, open(self._older, "rb"))  # noqa: SIM115
        newest: deque[bytes] = deque(maxlen=max(count, 0))
        number = broken = 0
        digest = NOTHING if len(streams) == 1 else None  # nobody has what was before the older file
        for stream in streams:
            state = hashlib.sha256()
            with stream:
                for line in stream:
                    number += 1
                    newest.append(line)
                    try:
                        before = wire.decode(line).get("before")
                    except ValueError:
                        before = None
                    if isinstance(before, str) and before != (digest or before):
                        broken = broken or number
                    state.update(line)
                    digest = state.hexdigest()
        return [line.decode(errors="replace").rstrip("\n") for line in newest], broken

    def _follow(self, descriptor: int) -> None:
        """Count in what was written since the last time."""
        while piece := os.pread(descriptor, PIECE, self._size):
            self._state.update(piece)
            self._size += len(piece)

    @contextlib.contextmanager
    def _file(self) -> Iterator[int]:
        try:
            descriptor = os.open(self._path, FLAGS, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise files.unwritable(self._path, error) from None


def _write(descriptor: int, line: bytes) -> None:
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
