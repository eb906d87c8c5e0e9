"""`gpq history`: the jobs that ended, with their figures. `gpq report`: GPU hours, what they were
worth, and how fair the shares were."""

from __future__ import annotations

import math
import sys
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated

import msgspec
import typer

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.client import stream
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options.datetimes import window
from gpq.rpc import account_answers, requests
from gpq.rpc.codec import encode_request

history = frame()
report = frame()

LATEST = 20
DAY = 86400.0  # seconds

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


@history.command("history")
def _history(
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
    if json:
        stream.write_json(encode_request(request))
        return
    from gpq.views import accounts

    if csv:
        rows = stream.rows(encode_request(request), output.note)
        sys.stdout.writelines(accounts.csv_lines(rows, account_answers.EndedView))
        return
    answer = call(request, account_answers.HistoryList)
    output.note(*answer.notes)
    output.text(accounts.history, answer, color.value)


def _report_team(begin: float | None, end: float | None, color: str, *, json: bool) -> None:
    from gpq.client.team import ask  # takes a moment to import
    from gpq.rpc.team_messages import GpuHours, View
    from gpq.views.team import report as view

    days = [begin or 0.0, math.ceil((end or 0.0) / DAY) * DAY]
    since, until = (datetime.fromtimestamp(day, timezone.utc).date().isoformat() for day in days)
    answer = ask(View(kind="report", since=since, until=until if end else ""), GpuHours)
    output.text(view, answer, color, as_json=json)


class By(str, Enum):
    user = "user"
    job = "job"
    server = "server"
    day = "day"


BY = typer.Option("--by", metavar="user|job|server|day", help="One row for each.")
REPORT_SINCE = typer.Option(
    "--since", metavar="WHEN", help="Start of the report: 7d, yesterday, 'mon 9:00', 2026-11-01."
)
REPORT_UNTIL = typer.Option(
    "--until", metavar="WHEN", help="End of the report, in the same formats."
)
REPORT_CSV = typer.Option("--csv", help="Print one CSV line per row.")
TEAM = typer.Option("--team", help="Report the GPU hours of the members of your team.")
HTML = typer.Option("--html", metavar="FILE", help="Write a page with plots. It needs no network.")


@report.command("report")
def _report(
    by: Annotated[By, BY] = By.user,
    since: Annotated[str, REPORT_SINCE] = "",
    until: Annotated[str, REPORT_UNTIL] = "",
    csv: Annotated[bool, REPORT_CSV] = False,
    html: Annotated[str, HTML] = "",
    team: Annotated[bool, TEAM] = False,
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
      gpq report --team --since 30d
    """
    if csv and json:
        raise UsageError("--csv and --json cannot be combined", "use one of them")
    begin, end = window(since, until)
    if team:
        if html or csv or by is not By.user:
            raise UsageError("--team has only a table", "leave out --by, --csv and --html")
        _report_team(begin, end, color.value, json=json)
        return
    if html:
        output.check_file("--html", html)
    answer = call(requests.Report(begin, end, by.value), account_answers.ReportView)
    if answer.earlier and not json:
        output.note(
            f"{answer.earlier} jobs ended before {answer.since[:16]} and are not in this report:"
            " `gpq report --since WHEN` begins earlier"
        )
    if html:
        users = (
            answer
            if by is By.user
            else call(requests.Report(begin, end), account_answers.ReportView)
        )
        from gpq.views import html_report

        with output.replace_file("--html", html) as part, open(part, "x", encoding="utf-8") as file:
            file.write(html_report.document(answer, users))
    from gpq.views import accounts

    if json:
        output.emit(answer)
    elif csv:
        figures = map(msgspec.structs.asdict, answer.rows)
        sys.stdout.writelines(accounts.csv_lines(figures, account_answers.ReportRow))
    elif html:
        output.say(f"wrote {html}")
    else:
        output.text(accounts.report, answer, color.value)
