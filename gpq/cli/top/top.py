"""`gpq top`: the live view, until q or Ctrl-C. Prints one picture with --once, or if stdout is not
a terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.top.poller import look
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.client.connection import Lasting
from gpq.errors import GpqError, UsageError
from gpq.rpc.daemon_answers import TopLook, TopView
from gpq.views import plain

app = frame()
QUERY = typer.Argument(metavar="[JOB | QUERY]...", help="Only these jobs, as in gpq status.")
TEAM = typer.Option("--team", help="Watch the members of your team and the jobs of all.")
ONCE = typer.Option("--once", help="Print the view once and exit.")
INTERVAL = typer.Option(
    "--interval", metavar="SECONDS", help="Time between two updates, at least 0.1 (1 with --team)."
)


@app.command()
def top(
    jobs: Annotated[list[str] | None, QUERY] = None,
    once: Annotated[bool, ONCE] = False,
    interval: Annotated[float, INTERVAL] = 1.0,
    team: Annotated[bool, TEAM] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """Watch the GPUs, the goodput of each job, the fairness, and the latest changes.

    Enter opens a job with its curves, the reasons for its GPUs, and its growing log. Press / to
    filter, s or r to sort, c to cancel, h to hold or release, + or - to change the priority. Press
    n for every process on the servers and ? for all keys. Esc goes back. q or Ctrl-C quits.

    The first line counts all jobs, also those that a filter hides. gpq leaves out columns that are
    empty for every job. If there is room, the last column says why a job is pending or how it
    ended.

    SHARE is the part of the GPUs in use, followed by the fair share. RHO is finish-time fairness: 1
    is as fast as a constant fair share, and lower is better.

    \b
    Example:
      gpq top
      gpq top 'user=ana sort=-goodput'
      gpq top --once
      gpq top --team
    """
    least = 1.0 if team else 0.1  # an arbiter answers only some messages a second
    if not least <= interval <= 3600:
        raise UsageError(
            f"--interval {interval:g} is out of range", f"use {least:g} to 3600 seconds"
        )
    words = " ".join(jobs or [])
    is_once = once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if team:
        from gpq.client import team as client  # takes a moment to import
        from gpq.views.team import page

        if words:
            raise UsageError(f"--team shows all jobs, not `{words}`", "leave out one of them")
        members = client.look()
        if json or is_once:
            output.text(page, members, color.value, as_json=json)
            return
    else:
        with Lasting(output.note) as daemon:
            if json:
                output.emit(look(daemon, words, TopView))
                return
            view = look(daemon, words, TopLook)
        if is_once:
            from gpq.views.top import frame as picture

            console = output.console(color.value)
            console.print(picture(view, console.width, None, words))
            return
    try:
        from gpq.cli.top.app import Browser, watch_team
        from gpq.cli.top.screen import Screen
    except ImportError as error:  # a Python that was built without curses
        raise GpqError(
            f"this Python cannot draw on a terminal: {error}", "use `gpq top --once`"
        ) from None

    colour = plain.wants_colour(color.value)
    with Screen(output.screen(color.value), colour=colour) as screen:
        if team:
            watch_team(screen, members, interval)
        else:
            Browser(screen, view, words, interval).run()
