"""What was decided, when, and by whom: an append-only file of JSON lines, each with the digest of
all that is before it. So a change of the past shows in the next line.

{"at": ISO 8601 in UTC, "what": a word, ..., "before": SHA-256 of the file up to this line, in hex}

A crash or a full disk may leave a piece of a line, which is no record but counts in digests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

from gpq_agent import wire

from gpq.arbiter import files

TAIL = 1 << 20  # bytes at the end of the file in which the newest lines are looked for
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Audit:
    """One process at a time may append."""

    def __init__(self, path: str) -> None:
        """Reads the file, and makes it if there is none. Raises Refused."""
        self._path = path
        self._lock = threading.Lock()
        self._size, self._state = 0, hashlib.sha256()
        with self._file() as descriptor:
            self._follow(descriptor)

    @property
    def digest(self) -> str:
        """Of all that is there."""
        return self._state.hexdigest()

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

    def tail(self, count: int) -> list[str]:
        """The newest lines, the oldest of them first. Raises Refused."""
        with self._file() as descriptor:
            start = max(os.fstat(descriptor).st_size - TAIL, 0)
            lines = os.pread(descriptor, TAIL, start).decode(errors="replace").splitlines()
        return lines[bool(start) :][-count:] if count > 0 else []

    def _follow(self, descriptor: int) -> None:
        """Count in what was written since the last time."""
        while piece := os.pread(descriptor, TAIL, self._size):
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


def first_break(path: str) -> int:
    """The number of the first line, from 1, that does not follow from those before. 0 if all do.
    Only the newest `Audit.digest` proves the last line. Reads the whole file. Raises OSError."""
    state = hashlib.sha256()
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                before = wire.decode(line).get("before")
            except ValueError:
                before = None
            if isinstance(before, str) and before != state.hexdigest():
                return number
            state.update(line)
    return 0
