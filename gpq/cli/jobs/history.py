"""`gpq history`: the jobs that ended, with their figures."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options.datetimes import window
from gpq.rpc import account_answers, requests

app = frame()

LATEST = 20

JOBS = typer.Argument(metavar="[JOB]...", help="Ids, ranges, names, or @ for the last job.")
USER = typer.Option("--user", "-u", metavar="USER", help="Only this user's jobs.")
STATE = typer.Option(
    "--state", "-s", metavar="ENDED", help="Only jobs that ended in this state. Can be repeated."
)
SINCE = typer.Option(
    "--since",
    metavar="WHEN",
    help="Only jobs that ended since: 7d, yesterday, 'mon 9:00', 2026-11-01.",
)
UNTIL = typer.Option(
    "--until", metavar="WHEN", help="Only jobs that ended before, in the same formats."
)
NUMBER = typer.Option(
    "--number",
    "-n",
    metavar="N",
    min=1,
    help="Show the last N. [default: 20. With --csv or --json: all]",
)
CSV = typer.Option("--csv", help="Print one CSV line per job.")


@app.command()
def history(
    jobs: Annotated[list[str] | None, JOBS] = None,
    user: Annotated[str, USER] = "",
    state: Annotated[list[str] | None, STATE] = None,
    since: Annotated[str, SINCE] = "",
    until: Annotated[str, UNTIL] = "",
    number: Annotated[int | None, NUMBER] = None,
    csv: Annotated[bool, CSV] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """Show the jobs that ended, the latest last, with their waits, GPU hours and restarts.

    GPUS is the mean over the time in RAN. GOODPUT H is how many hours one GPU, used as well as the
    job can use it, needs for the same useful work. Only jobs that report progress have it. COST H
    is the GPU hours that stops and restarts took. RHO is finish-time fairness, and 1 or less is
    fair.

    \b
    Example:
      gpq history -n 50
      gpq history --user alice --since "mon 9:00" --state failed
      gpq history --since 30d --csv > jobs.csv
    """
    if csv and json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    begin, end = window(since, until)
    limit = 0 if csv or json else LATEST
    if number is not None:
        limit = number
    request = requests.History(list(jobs or []), user, list(state or []), begin, end, limit)
    answer = call(request, account_answers.HistoryList)
    if json:
        output.emit(answer)
        return
    output.note(*answer.notes)
    if csv:
        from gpq.views.accounts import csv_text

        sys.stdout.write(csv_text(answer.jobs, account_answers.EndedView))
    else:
        from gpq.views import accounts

        output.text(accounts.history, answer, color.value)
