"""Sets signals as a terminal leaves them. `nohup` and `&` ignore some, and every child would inherit that."""

from __future__ import annotations

import signal


def _do_nothing(number: int, frame: object) -> None:
    """Stands for ignoring. Unlike SIG_IGN, it ends when a child calls exec."""


def restore() -> None:
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
