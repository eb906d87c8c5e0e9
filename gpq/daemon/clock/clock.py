"""The daemon's clock: seconds since 1970 that never jump and never go back, whatever happens to the
machine's clock."""

from __future__ import annotations

import threading
import time

from gpq.core.model.units import Seconds

SLEW = 0.01  # follow the machine's clock by at most this part of the elapsed time


def steady_seconds() -> Seconds:
    """Seconds on a clock that only goes forward, and that also counts the time of a suspended
    machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """It starts at the wall clock's time and then counts real seconds. If somebody sets the wall
    clock, it follows slowly, so that no time limit, grace or back-off ends early."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = time.time()
        self._counted = steady_seconds()

    def elapsed(self) -> Seconds:
        """For differences: see the function."""
        return steady_seconds()

    def now(self) -> Seconds:
        with self._lock:
            monotonic = steady_seconds()
            passed_seconds = monotonic - self._counted
            off = time.time() - (self._at + passed_seconds)
            self._at += passed_seconds + max(
                -SLEW * passed_seconds, min(off, SLEW * passed_seconds)
            )
            self._counted = monotonic
            return self._at
