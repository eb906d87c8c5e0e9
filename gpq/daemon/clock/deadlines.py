"""Points in time until which a thread waits, on a clock that nobody sets."""

from __future__ import annotations

import threading
import time


def deadline(seconds: float) -> float:
    """A point that `left` reads."""
    return time.monotonic() + seconds


def left(until: float) -> float:
    """Seconds until then, at least 0 and at most what a lock can wait."""
    return min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
