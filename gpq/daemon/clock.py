"""Time for the daemon: wall clock stamps that no correction of the clock moves, and deadlines."""

from __future__ import annotations

import threading
import time


class Clock:
    """Wall clock as it was at the start, carried on by the clock that counts suspended time too.

    A corrected or wrong wall clock therefore moves no deadline. `floor` is the latest stamp of an earlier daemon.
    """

    def __init__(self, floor: float = 0.0) -> None:
        self._base = max(time.time(), floor) - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> float:
        return self._base + time.clock_gettime(time.CLOCK_BOOTTIME)


def deadline(seconds: float) -> float:
    """A point on the clock that `left` reads."""
    return time.monotonic() + seconds


def left(until: float) -> float:
    """Seconds until then, at least 0 and at most what a lock can wait."""
    return min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
