"""Turns a signal into an error, so that everything that a check started ends with it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from gpq.errors import Interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGTERM and a closed terminal raise an error, as Ctrl-C does: contexts close, and
    their processes end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def leave(number: int, _: object) -> None:
        raise Interrupted(number, "the check was interrupted, and all of its processes have ended")

    for number in handlers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
