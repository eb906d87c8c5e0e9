"""The limit of an attempt's log: beyond it a hole is punched in the middle, head and end stay, and
so does every offset.

The job goes on writing to the same file; nothing is piped through us, so a killed shim costs the
job nothing. A reader is told by the file itself where the hole is (`logs.tail`).
"""

import ctypes
import errno
import os
import time

from gpq_agent import records

# bytes; holes have whole blocks of the file system, so that no zeros are left at their ends
ALIGN = 1 << 16
# after a cut there are 1/8 of the limit from the start and 1/2 of it from the end
HEAD_SHARE, END_SHARE = 8, 2
# seconds between two looks; the time doubles at most from one to the next
SOONEST, LATEST = 0.05, 2.0
KEEP_SIZE, PUNCH_HOLE = 1, 2  # linux/falloc.h


class Cap:
    """`look` now and then, at the latest after `patience` seconds. `limit`: bytes on the disk, 0
    for none."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = max(limit, 16 * ALIGN) if limit > 0 else 0
        self._due = 0.0 if limit > 0 else float("inf")
        self._wait = SOONEST
        self._last = (time.monotonic(), 0)  # (when, bytes) of the last look

    def patience(self) -> float:
        """Seconds until it is to be looked at again."""
        return max(0.0, self._due - time.monotonic())

    def look(self, at_once: bool = False) -> str:
        """Cut what is over the limit. Returns what a person should know: why it cannot be done,
        else ""."""
        if not self.limit or (self.patience() > 0 and not at_once):
            return ""
        try:
            descriptor = records.open_plain(self.path, os.O_WRONLY)
        except (OSError, records.Damaged):  # not there yet, or taken away
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
            begin = _up(self.limit // HEAD_SHARE)
            end = (status.st_size - self.limit // END_SHARE) // ALIGN * ALIGN
            try:
                if end > begin:
                    punch(descriptor, begin, end - begin)
            except OSError as error:
                self._due = float("inf")
                self.limit = 0
                return "its log is over its limit and cannot be shortened here: {}".format(
                    error.strerror
                )
            used_bytes = os.fstat(descriptor).st_blocks * 512
        self._due = time.monotonic() + self._next(
            self._until_full(status.st_size, self.limit - used_bytes)
        )
        return ""

    def _until_full(self, size: int, room: int) -> float:
        """Half the time in which `room` bytes are written, by the rate since the last look."""
        now, (previous_time, previous_size) = time.monotonic(), self._last
        self._last = (now, size)
        rate = (size - previous_size) / max(now - previous_time, 1e-3)
        return room / rate / 2 if rate > 0 else LATEST

    def _next(self, desired: float) -> float:
        self._wait = min(max(desired, SOONEST), 2 * self._wait, LATEST)
        return self._wait


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give the blocks of a part of the file back; its size stays. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(descriptor, PUNCH_HOLE | KEEP_SIZE, offset, length) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _up(number: int) -> int:
    return (number + ALIGN - 1) // ALIGN * ALIGN
