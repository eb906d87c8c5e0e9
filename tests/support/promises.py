"""What gpq promises: no job lost, none run twice, no silent change, no replica that crashes."""

from __future__ import annotations

import signal


class BrokenPromise(AssertionError):
    """A test saw a broken promise. It gets no second try, see `tests.tiers.again`."""


CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def demand_no_crash(codes: list[int | None]) -> None:
    """Raises BrokenPromise if a replica died of a signal that nobody sends. `codes`: exit codes by rank."""
    for rank, code in enumerate(codes):
        if code is not None and -code in CRASHES:
            raise BrokenPromise(f"replica {rank} died of {signal.Signals(-code).name}")
