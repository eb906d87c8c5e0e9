"""The daemon's clock: seconds since 1970 that never jump and never go back, whatever is done to the
machine's clock."""

from __future__ import annotations

import threading
import time

from gpq.core.model.units import Seconds

SLEW = 0.01  # follow the machine's clock by at most this much of the time that passed


def elapsed() -> Seconds:
    """Seconds on a clock that only goes forward and counts a suspended machine's sleep as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Starts at the wall clock's time and then counts real seconds. A wall clock that was set is
    followed slowly, so that no time limit, grace or back-off runs out by it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = time.time()
        self._counted = elapsed()

    def elapsed(self) -> Seconds:
        """For differences: see the function."""
        return elapsed()

    def now(self) -> Seconds:
        with self._lock:
            monotonic = elapsed()
            passed_seconds = monotonic - self._counted
            off = time.time() - (self._at + passed_seconds)
            self._at += passed_seconds + max(
                -SLEW * passed_seconds, min(off, SLEW * passed_seconds)
            )
            self._counted = monotonic
            return self._at
