"""`gpq wait`: blocks until jobs have ended and exits with their code."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gpq.cli import output, values
from gpq.cli.bringing import Bar
from gpq.cli.frame import Jobs, Json, frame
from gpq.client.connection import Lasting
from gpq.errors import TimedOut
from gpq.rpc import messages
from gpq.views.queue import ENDED, remark

app = frame()
SLICE = 30.0  # seconds that one request blocks
SUSPENSE = 5.0  # seconds after which a job that has not started is worth a remark


@app.command()
def wait(
    jobs: Jobs,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Give up then, with exit code 124.")
    ] = "",
    json: Json = False,
) -> int:
    """Block until the jobs have ended; exit with the job's own code (128+n for a signal), of several the first that is not 0.

    \b
    Example:
      gpq wait 42 && gpq submit -- ./evaluate.sh
      gpq wait 3-7 --timeout 2h
    """
    return until_ended(jobs, values.seconds(timeout, "--timeout") if timeout else None, as_json=json)


def until_ended(
    jobs: list[str], seconds: float | None, *, as_json: bool = False, quiet: bool = False, say_why: bool = False
) -> int:
    """The first exit status that is not 0, by id. Raises TimedOut after so many `seconds`.

    `say_why`: of what has not started soon it is said once, on stderr, why not.
    """
    until = None if seconds is None else time.monotonic() + seconds
    bar, suspense = Bar(), time.monotonic() + SUSPENSE
    daemon = Lasting(bar.note)
    while True:
        longest = bar.patience(max(suspense - time.monotonic(), 0.0) if say_why else SLICE)
        left = longest if until is None else min(longest, until - time.monotonic())
        with daemon:  # one that waits for long leaves its place to others in between
            answer = daemon.call(messages.Wait(jobs, wait=max(left, 0.0)), messages.JobList)
        bar.show(answer.jobs)
        open_jobs = [job.id for job in answer.jobs if job.state not in ENDED]
        if not open_jobs:
            break
        if until is not None and time.monotonic() >= until:
            raise TimedOut(f"{output.jobs(open_jobs)} did not end within {seconds:g} s", "they run on: `gpq status`")
        if say_why and time.monotonic() >= suspense:
            bar.note(*waiting(answer))
            say_why = False
        jobs = [str(job.id) for job in answer.jobs]  # a selector such as `all` means what it meant at first
    if as_json:
        output.emit(answer)
    elif not quiet:
        output.say(*(_ended(job) for job in answer.jobs))
    return next((status for job in answer.jobs if (status := code(job))), 0)


def waiting(answer: messages.JobList) -> list[str]:
    """Why those wait that do, and which servers are to blame."""
    pending = [job for job in answer.jobs if job.state == "pending" and job.reason]
    said = [f"job {job.id} waits: {job.reason}; `gpq why {job.id}` says more" for job in pending]
    return [*said, *answer.warnings] if said else []


def code(job: messages.JobView) -> int:
    """The job's own exit status; 1 for one that ended otherwise than well and left none."""
    if job.exit_status is not None:
        return job.exit_status
    return 0 if job.state == "completed" else 1


def _ended(job: messages.JobView) -> str:
    said = remark({"exit_status": job.exit_status, "state": job.state, "reason": job.reason})
    return f"job {job.id} {job.state}" + (f": {said}" if said else "")
