"""`gpq cancel`: stops jobs, and returns when every process is gone."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.typer_app import Jobs, Json, frame
from gpq.client import following
from gpq.client.connection import Lasting
from gpq.errors import Refused
from gpq.options import values
from gpq.rpc import job_answers

MOST_EXAMPLES = 6  # jobs that a question lists
MOST_LINES = 50
QUIET_SECONDS = 2.0

app = frame()


@app.command()
def cancel(
    jobs: Jobs,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Wait at most this long.")
    ] = "3m",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask when a name matches several jobs.")
    ] = False,
    json: Json = False,
) -> int:
    """Stop jobs permanently. Returns when every process is gone.

    The processes get TERM, and KILL after 10 s. To let a job save a checkpoint, use `gpq hold`
    instead. A name means all live jobs with that name. On a terminal, gpq asks first if there are
    several. If a server does not answer, gpq says so at once and stops the job when the server is
    back. Ctrl-C ends only the waiting, and the jobs are still cancelled. The exit code is 1 if a
    process was still there after the timeout, or if gpq cannot know because the server was removed
    from gpq.

    \b
    Example:
      gpq cancel 42
      gpq cancel 3-7 train
    """
    seconds = values.seconds(timeout, "--timeout")

    with Lasting(output.note) as daemon, contextlib.ExitStack() as exit_stack:

        def begin(rows: list[job_answers.JobView]) -> None:
            if not yes:
                _ask(jobs, rows)
            exit_stack.enter_context(
                output.on_interrupt("gpq keeps cancelling: `gpq status` shows the progress")
            )
            exit_stack.enter_context(_slow())

        answer = following.cancel_and_wait(daemon, jobs, seconds, begin)
    if json:
        output.confirm(result=answer)
    else:
        _print(answer, timeout)
    return 1 if answer.remaining or answer.given_up else 0


def _print(answer: job_answers.CancelResult, timeout: str) -> None:
    output.confirm(
        *(f"{jobs} cancelled: every process is gone" for jobs in _lines_of(answer.cancelled)),
        *(f"{jobs} had already ended: nothing to cancel" for jobs in _lines_of(answer.ended)),
    )
    for job, nodes in answer.given_up.items():
        output.note(
            f"job {job} given up: gpq does not know whether its processes still run on"
            f" {', '.join(nodes)}, because that server was removed from gpq"
        )
    if not (answer.cancelled or answer.ended or answer.remaining or answer.given_up):
        output.confirm("no job to cancel")
    for job in answer.remaining:
        if job not in answer.waiting:
            output.note(f"job {job} still has processes after {timeout}: `gpq why {job}`")
    for job, reason in answer.waiting.items():
        output.note(f"job {job} will be cancelled when its server answers ({reason})")


def _lines_of(jobs: list[int]) -> list[str]:
    """One of many lines for each job, or one for all if nobody would read them."""
    if len(jobs) <= MOST_LINES:
        return [f"job {job}" for job in jobs]
    return [f"{len(jobs)} jobs ({', '.join(following.ranges(jobs))})"]


def _ask(words: list[str], rows: list[job_answers.JobView]) -> None:
    """Ask on a terminal, and raise Refused if the user says no. Scripts are never asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for word in dict.fromkeys(words):
        matches = [row for row in rows if row.name == word]
        if len(matches) < 2:
            continue
        examples = ", ".join(f"{job.id} ({job.state})" for job in matches[:MOST_EXAMPLES])
        if len(matches) > MOST_EXAMPLES:
            examples += f" and {len(matches) - MOST_EXAMPLES} more"
        output.note(f"{len(matches)} jobs are called {word}: {examples}")
        sys.stderr.write("Cancel all of them? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Refused(
                "nothing was cancelled", "use an id, or a range such as 3-7, to name fewer jobs"
            )


@contextlib.contextmanager
def _slow() -> Iterator[None]:
    """On a terminal, say after some seconds what gpq waits for."""
    timer = threading.Timer(
        QUIET_SECONDS,
        output.note,
        ["waiting until every process is gone (Ctrl-C ends only the waiting)"],
    )
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
