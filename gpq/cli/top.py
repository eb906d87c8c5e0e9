"""`gpq top`: the live view, until q or Ctrl-C; one frame with --once, and wherever stdout is no terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.frame import Color, ColorChoice, Json, frame
from gpq.client.connection import Lasting, connect
from gpq.errors import UsageError
from gpq.rpc import messages

app = frame()
ONCE = typer.Option("--once", help="Print one frame and end.")
INTERVAL = typer.Option("--interval", metavar="SECONDS", help="Between two looks, at least 0.1.")


@app.command()
def top(
    once: Annotated[bool, ONCE] = False,
    interval: Annotated[float, INTERVAL] = 1.0,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """Live: GPUs and who is on them, goodput of each job, fairness by user and job, last re-allocations and why.

    q or Ctrl-C ends it. SHARE is the part of the GPUs in use, and after the stroke the fair share. RHO is finish-time
    fairness: 1 is as fast as with a fair share all the time, lower is better.

    \b
    Example:
      gpq top
      gpq top --once --color never
    """
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g} is out of range", "from 0.1 to 3600 seconds")
    if json:
        with connect() as connection:
            output.emit(connection.call(messages.Top(), messages.TopView))
    elif once or not sys.stdout.isatty():
        _print(color.value)
    else:
        _live(interval, color.value)


def _print(color: str) -> None:
    from gpq.views.top import frame as picture

    with connect() as connection:
        view = connection.call(messages.Top(), messages.TopView)
    console = output.console(color)
    console.print(picture(view, console.width, None))


def _live(interval: float, color: str) -> None:
    from rich.live import Live

    from gpq.views.top import frame as picture

    console = output.screen(color)
    daemon = Lasting(lambda text: None)  # the picture goes on: a remark would only tear it
    with daemon, _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            view = daemon.call(messages.Top(), messages.TopView)
            live.update(picture(view, console.width, console.height), refresh=True)
            if pressed(interval):
                return


@contextmanager
def _keys() -> Iterator[Keys]:
    """Reads keys without Enter while the view is open."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keys:
    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, seconds: float) -> bool:
        """Waits so long; True at once when q is pressed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._descriptor is None:
                time.sleep(left)
            elif select.select([self._descriptor], [], [], left)[0]:
                pressed = os.read(self._descriptor, 64)
                if not pressed or pressed[:1] in (b"q", b"Q"):
                    return True
        return False
