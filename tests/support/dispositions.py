"""Signals as a terminal leaves them, whoever started the tests: `nohup` and `&` ignore some, and so would every child."""

from __future__ import annotations

import signal


def _do_nothing(number: int, frame: object) -> None:
    """Stands for ignoring. Unlike that, it ends with the exec of a child."""


def restore() -> None:
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
