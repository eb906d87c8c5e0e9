"""`gpq wait`: waits until jobs have ended, and exits with their code."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import msgspec
import typer

from gpq.cli import output
from gpq.cli.transfer_bar import Bar
from gpq.cli.typer_app import Jobs, Json, frame
from gpq.client import following
from gpq.options import values
from gpq.rpc import job_answers
from gpq.views.queue import notes, remark

app = frame()
SUSPENSE = 5.0  # seconds after which gpq says why a job has not started


@app.command()
def wait(
    jobs: Jobs,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Stop waiting after this long, with exit code 124.",
        ),
    ] = "",
    json: Json = False,
) -> int:
    """Wait until the jobs have ended, and exit with the job's code (128+n for signal n).

    With several jobs, the exit code is the first that is not 0. It is 6 if those that are left do
    not start on their own, because a job that they wait for did not end as required.

    \b
    Example:
      gpq wait 42 && gpq submit -- ./evaluate.sh
      gpq wait 3-7 --timeout 2h
    """
    seconds = values.seconds(timeout, "--timeout") if timeout else None
    with output.on_interrupt("the jobs stay queued or keep running: `gpq cancel` stops them"):
        return until_ended(jobs, seconds, as_json=json, say_why=sys.stderr.isatty() and not json)


def until_ended(
    jobs: list[str],
    seconds: float | None,
    *,
    as_json: bool = False,
    quiet: bool = False,
    say_why: bool = False,
) -> int:
    """The first exit status that is not 0, by id. Raises TimedOut after `seconds`.

    `say_why`: if jobs do not start soon, say why once on stderr.
    """
    bar, suspense, explained = Bar(), time.monotonic() + SUSPENSE, not say_why

    def longest() -> float:
        return following.SLICE if explained else max(suspense - time.monotonic(), 0.0)

    def explain(answer: job_answers.JobList) -> None:
        nonlocal explained
        if not explained and time.monotonic() >= suspense:
            bar.note(*waiting(answer))
            explained = True

    answer = following.until_ended(jobs, seconds, bar, longest=longest, listener=explain)
    if as_json or not quiet:
        output.confirm(*map(_end_line, answer.jobs), result=answer if as_json else None)
    output.note(*notes([msgspec.to_builtins(job) for job in answer.jobs]))
    return next((status for job in answer.jobs if (status := following.exit_status(job))), 0)


def waiting(answer: job_answers.JobList) -> list[str]:
    """Why jobs are pending, and which servers have problems."""
    pending = [job for job in answer.jobs if job.state == "pending" and job.reason]
    lines = [f"job {job.id} is pending: {job.reason} (see `gpq why {job.id}`)" for job in pending]
    return [*lines, *answer.warnings] if lines else []


def _end_line(job: job_answers.JobView) -> str:
    detail = remark({"exit_status": job.exit_status, "state": job.state, "reason": job.reason})
    return f"job {job.id} {job.state}" + (f": {detail}" if detail else "")
