"""`gpq status` with all its options, `gpq show` and `gpq why`. `fast_path` answers plain calls of
`gpq status` without this module."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.jobs import status_fast
from gpq.cli.typer_app import Color, ColorChoice, Job, Json, frame
from gpq.client.connection import call
from gpq.rpc import job_answers, requests
from gpq.rpc.job_columns import FIELDS
from gpq.views import detail

status = frame()
show = frame()
why = frame()

JOBS = typer.Argument(
    metavar="[JOB | QUERY]...", help="Ids, ranges, names, @ for the last job, all, or conditions."
)
USER = typer.Option("--user", "-u", metavar="USER", help="Only this user's jobs.")
STATE = typer.Option(
    "--state", "-s", metavar="STATE", help="Only jobs in this state. Can be repeated."
)
RECENT = typer.Option("--recent", metavar="N", min=0, help="How many ended jobs to show.")
TEAM = typer.Option("--team", help="Show the jobs of all members of your team.")
EVERYTHING = typer.Option("--all", "-a", help="Show the latest 1,000 that ended. With --json: all.")


@status.command("status")
def _status(
    jobs: Annotated[list[str] | None, JOBS] = None,
    user: Annotated[str, USER] = "",
    state: Annotated[list[str] | None, STATE] = None,
    recent: Annotated[int, RECENT] = 20,
    everything: Annotated[bool, EVERYTHING] = False,
    team: Annotated[bool, TEAM] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """Show the queue: which job has which GPUs, how well it runs, and why the others wait.

    A query is one or more conditions, and all must hold. Use FIELDS. Compare with = or != (one of
    A,B), ~ or !~ (contains), < > <= >=. sort=-goodput,id sorts, and limit=10 shows ten.

    SPEEDUP is the goodput relative to the goodput on a fair share of the GPUs. RUN is the run time
    over all attempts. AGE is the time from submission to the end, or until now. Ended jobs come
    first and live jobs last, next to the prompt.

    \b
    Example:
      gpq status
      gpq status 3-7 --json
      gpq status --user alice --state running
      gpq status "user=alice tag~cifar age>2h sort=-goodput"
      gpq status --team
    """
    if team:
        from gpq.client.team import ask  # takes a moment to import
        from gpq.rpc.team_messages import Queue, View
        from gpq.views.team import queue

        output.text(queue, ask(View(kind="queue"), Queue), color.value, as_json=json)
        return 0
    return status_fast.show(
        list(jobs or []),
        json=json,
        all=everything,
        color=color.value,
        user=user,
        states=list(state or []),
        recent=recent,
    )


_status.__doc__ = str(_status.__doc__).replace(
    "FIELDS", f"{', '.join(FIELDS[:-1])} or {FIELDS[-1]}"
)


@show.command("show")
def _show(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Show everything about one job.

    It shows the request, the attempts and their GPUs, the goodput by number of GPUs, and the cost
    of restarts.

    \b
    Example:
      gpq show 42
      gpq show @ --json
    """
    answer = call(requests.Show(job), job_answers.JobDetail)
    output.text(detail.lines, answer, color.value, as_json=json)


@why.command("why")
def _why(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Explain why a job waits, or why it has these GPUs, and what would change that.

    MEMBER/JOB names a job of another member of your team.

    \b
    Example:
      gpq why 42
      gpq why bob/42
    """
    if "/" in job:
        from gpq.client.team import ask, member_and_job
        from gpq.rpc.team_messages import Reasons, View
        from gpq.views.team import reasons

        member, number = member_and_job(job)
        lines = ask(View(kind="why", member=member, job=number), Reasons)
        output.text(reasons, lines, color.value, as_json=json)
        return
    answer = call(requests.Why(job), job_answers.Explanation)
    output.text(detail.why, answer, color.value, as_json=json)
