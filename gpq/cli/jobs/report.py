"""`gpq report`: GPU hours, what they were worth, and how fair the shares were."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options.datetimes import window
from gpq.rpc import account_answers, requests

app = frame()


class By(str, Enum):
    user = "user"
    job = "job"
    server = "server"
    day = "day"


BY = typer.Option("--by", metavar="user|job|server|day", help="One row for each.")
SINCE = typer.Option(
    "--since", metavar="WHEN", help="Start of the report: 7d, yesterday, 'mon 9:00', 2026-11-01."
)
UNTIL = typer.Option("--until", metavar="WHEN", help="End of the report, in the same formats.")
CSV = typer.Option("--csv", help="Print one CSV line per row.")
HTML = typer.Option("--html", metavar="FILE", help="Write a page with plots. It needs no network.")


@app.command()
def report(
    by: Annotated[By, BY] = By.user,
    since: Annotated[str, SINCE] = "",
    until: Annotated[str, UNTIL] = "",
    csv: Annotated[bool, CSV] = False,
    html: Annotated[str, HTML] = "",
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> None:
    """Report GPU hours by user, job, server or day, with waits, restarts, failures and fairness.

    GOODPUT H is how many hours one GPU, used as well as the job can use it, needs for the same
    useful work. WORTH is GOODPUT H relative to the GPU hours, over jobs that report progress. SHARE
    is the part of all GPU hours. FAIR is the fair share among all users with jobs that ran or
    waited. WAIT is the median wait from submission to start, and 95% of the waits are below P95.
    RHO and MAX are the median and the worst finish-time fairness, and 1 or less is fair.

    \b
    Example:
      gpq report --since 30d
      gpq report --by day --since "mon 0:00" --csv
      gpq report --since 2026-11-01 --html report.html
    """
    if csv and json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    begin, end = window(since, until)
    if html:
        from gpq.views import html_report

        html_report.check(html)
    answer = call(requests.Report(begin, end, by.value), account_answers.ReportView)
    if html:
        users = (
            answer
            if by is By.user
            else call(requests.Report(begin, end), account_answers.ReportView)
        )
        html_report.write(html, html_report.document(answer, users))
    if json:
        output.emit(answer)
    elif csv:
        from gpq.views.accounts import csv_text

        sys.stdout.write(csv_text(answer.rows, account_answers.ReportRow))
    elif html:
        output.say(f"wrote {html}")
    else:
        from gpq.views import accounts

        output.text(accounts.report, answer, color.value)
