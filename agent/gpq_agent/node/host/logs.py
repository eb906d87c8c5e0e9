"""The two append-only files of an attempt. Agents read them by offset: the log as bytes, the report
as complete lines.

The shim limits the log. Beyond the limit it punches a hole in the middle. Head and end stay, and so
does every offset. The job still writes to the same file. Nothing is piped through the shim, so a
killed shim never affects the job. The file itself shows readers where the hole is (`kept_tail`).
"""

import ctypes
import errno
import os
import sys
import time
from typing import Tuple

from gpq_agent import records

LONGEST_LINE = 1 << 20  # bytes. A longer report line is dropped
MOST_UNREAD = 16 << 20  # bytes of a report that wait to be read. What came before them is left out
# bytes. Holes consist of whole blocks of the file system, so that no zeros are left at their ends
ALIGN = 1 << 16
LEAST_LIMIT = 16 * ALIGN  # bytes of a log
# after a cut, 1/8 of the limit from the start and 1/2 of it from the end remain
HEAD_SHARE, END_SHARE = 8, 2
# seconds between two looks. From one look to the next the time at most doubles
SOONEST, LATEST = 0.05, 2.0
KEEP_SIZE, PUNCH_HOLE = 1, 2  # linux/falloc.h


def tail(path: str, offset: int, limit: int) -> Tuple[bytes, int, int]:
    """(at most `limit` bytes from offset, offset after them, size of the file). A negative offset
    counts from the end. A file that does not exist yet or is not regular counts as empty."""
    try:
        with os.fdopen(records.open_plain(path), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            offset = max(0, size + offset) if offset < 0 else offset
            stream.seek(offset)
            data = stream.read(max(0, limit))
    except (FileNotFoundError, records.Damaged):
        return b"", max(0, offset), 0
    return data, offset + len(data), max(size, offset + len(data))


def kept_tail(path: str, offset: int, limit: int) -> Tuple[bytes, int, int, int]:
    """Like `tail`, but skips the holes of a log that is over its limit: (bytes, number
    of bytes left out before them, offset after them, size of the file). A hole may appear during
    the read, so look for one afterwards too."""
    while True:
        start = _edge(path, offset, os.SEEK_DATA)
        data, _, size = tail(path, start, limit)
        hole = _edge(path, start, os.SEEK_HOLE)
        if hole > start or not data:
            data = data[: max(0, hole - start)]
            return data, start - offset, start + len(data), size


def _edge(path: str, offset: int, direction: int) -> int:
    """The next byte from `offset` that is outside a hole, or inside one. The end of the file counts
    as a hole."""
    try:
        with os.fdopen(records.open_plain(path), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size  # before, because the file may grow now
            try:
                return os.lseek(stream.fileno(), offset, direction)
            except OSError as error:
                if error.errno != errno.ENXIO and direction == os.SEEK_DATA:
                    return offset  # the file system does not support holes
                # the same, beyond the end, or only a hole
                return max(offset, size)
    except (FileNotFoundError, records.Damaged):
        return offset


def lines_after(path: str, offset: int, budget: int, end: int = sys.maxsize) -> Tuple[str, int]:
    """(complete lines from `offset`, offset after them): about `budget` bytes, but at least one
    line if there is one, and nothing after byte `end`.

    Without text, but with a new offset: what is between cannot be a report, or is too much. Takes
    no longer for a larger file."""
    data, _, size = tail(path, offset, min(budget, end - offset))
    if min(size, end) - offset > MOST_UNREAD:
        return "", min(size, end) - MOST_UNREAD // 2
    length = data.rfind(b"\n") + 1
    if length == 0 and len(data) == budget:  # a line longer than the budget
        data, _, _ = tail(path, offset, min(LONGEST_LINE, end - offset))
        length = data.find(b"\n") + 1
        if length == 0 and len(data) == LONGEST_LINE:
            return "", offset + LONGEST_LINE
    return data[:length].decode("utf-8", "replace"), offset + length


class Cap:
    """Call `look` now and then, at the latest after `patience` seconds. `limit`: bytes on the disk,
    0 for none."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit, self._due = 0, float("inf")
        if limit > 0:
            self.limit, self._due = max(limit, LEAST_LIMIT), 0.0
        self._wait = SOONEST
        self._last = (time.monotonic(), 0)  # (when, bytes) of the last look

    def patience(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due - time.monotonic())

    def look(self, at_once: bool = False) -> str:
        """Cut a log that is over the limit. Return why that is impossible, otherwise ""."""
        if not self.limit or (self.patience() > 0 and not at_once):
            return ""
        try:
            descriptor = records.open_plain(self.path, os.O_WRONLY)
        except (OSError, records.Damaged):  # not there yet, or removed
            self._due = time.monotonic() + self._next(LATEST)
            return ""
        try:
            return self._cut(descriptor)
        finally:
            os.close(descriptor)

    def _cut(self, descriptor: int) -> str:
        status = os.fstat(descriptor)
        used_bytes = status.st_blocks * 512
        if used_bytes > self.limit:
            begin = (self.limit // HEAD_SHARE + ALIGN - 1) // ALIGN * ALIGN
            end = (status.st_size - self.limit // END_SHARE) // ALIGN * ALIGN
            try:
                if end > begin:
                    punch(descriptor, begin, end - begin)
            except OSError as error:
                self._due = float("inf")
                self.limit = 0
                words = "its log is over its limit and cannot be shortened here: {}"
                return words.format(error.strerror)
            used_bytes = os.fstat(descriptor).st_blocks * 512
        now, (previous_time, previous_size) = time.monotonic(), self._last
        self._last = (now, status.st_size)
        rate = (status.st_size - previous_size) / max(now - previous_time, 1e-3)
        # half the time until it is full, at the rate since the last look
        wait = (self.limit - used_bytes) / rate / 2 if rate > 0 else LATEST
        self._due = now + self._next(wait)
        return ""

    def _next(self, desired: float) -> float:
        self._wait = min(max(desired, SOONEST), 2 * self._wait, LATEST)
        return self._wait


def punch(descriptor: int, offset: int, length: int) -> None:
    """Free the blocks of a part of the file. Its size stays. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(descriptor, PUNCH_HOLE | KEEP_SIZE, offset, length) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
