"""The time and the epoch of this daemon: a clock that never jumps and never goes back, whatever
happens to the machine's clock, points in time until which a thread waits, and which daemon this is,
as agents learn it."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class DaemonEpoch:
    """Which daemon this is, whether it may still give orders (no newer daemon has opened the
    database), and the secrets that it gives to attempts."""

    store: str  # id of the database
    number: int
    holds: Callable[[], bool]  # asked again each time. False also if that cannot be told
    # of the database. A daemon without one has its own
    secret: str = field(default_factory=secrets.token_hex, repr=False)

    def secret_of(self, attempt: str) -> str:
        """That of an attempt, for all its servers, and the same if the order is repeated."""
        return hmac.new(self.secret.encode(), attempt.encode(), "sha256").hexdigest()


# Without a database: agents do not fence it, and it has no leases.
UNNAMED = DaemonEpoch("", 0, lambda: True)
