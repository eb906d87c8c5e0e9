"""The limit of an attempt's log. Beyond it gpq punches a hole in the middle. Head and end stay, and
so does every offset.

The job still writes to the same file. Nothing is piped through the shim, so a killed shim never
affects the job. The file itself shows readers where the hole is (`logs.kept_tail`).
"""

import ctypes
import errno
import os
import time

from gpq_agent import records

# bytes. Holes consist of whole blocks of the file system, so that no zeros are left at their ends
ALIGN = 1 << 16
# after a cut, 1/8 of the limit from the start and 1/2 of it from the end remain
HEAD_SHARE, END_SHARE = 8, 2
# seconds between two looks. From one look to the next the time at most doubles
SOONEST, LATEST = 0.05, 2.0
KEEP_SIZE, PUNCH_HOLE = 1, 2  # linux/falloc.h


class Cap:
    """Call `look` now and then, at the latest after `patience` seconds. `limit`: bytes on the disk,
    0 for none."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = max(limit, 16 * ALIGN) if limit > 0 else 0
        self._due = 0.0 if limit > 0 else float("inf")
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
                return "its log is over its limit and cannot be shortened here: {}".format(
                    error.strerror
                )
            used_bytes = os.fstat(descriptor).st_blocks * 512
        self._due = time.monotonic() + self._next(
            self._until_full(status.st_size, self.limit - used_bytes)
        )
        return ""

    def _until_full(self, size: int, room: int) -> float:
        """Half the time to write `room` bytes, at the rate since the last look."""
        now, (previous_time, previous_size) = time.monotonic(), self._last
        self._last = (now, size)
        rate = (size - previous_size) / max(now - previous_time, 1e-3)
        return room / rate / 2 if rate > 0 else LATEST

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
