"""An end from outside as an error, so that everything a check has started ends with it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from gpq.errors import Interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a terminal that goes are errors here, as Ctrl-C is: contexts close, and their
    processes end."""
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
