"""`gpq wait`: waits until jobs have ended, and exits with their code. On a terminal, a bar shows
the files that are copied to the servers of a job before it starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from gpq.cli import output
from gpq.cli.typer_app import Jobs, Json, frame
from gpq.client import following
from gpq.client.following import BEGINNING
from gpq.core.feasibility.checkpoints import Staging
from gpq.options import values
from gpq.rpc import job_answers
from gpq.rpc.job_answers import JobView
from gpq.views import plain
from gpq.views.queue import notes, remark

app = frame()
CELLS = 24
# seconds between two updates: while the bar is shown, and before the job has started
SHORT_PAUSE, LONG_PAUSE = 0.5, 3.0
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
        lines = []
        for job in answer.jobs:
            row = {"exit_status": job.exit_status, "state": job.state, "reason": job.reason}
            detail = remark(row)
            lines.append(f"job {job.id} {job.state}" + (f": {detail}" if detail else ""))
        output.confirm(*lines, result=answer if as_json else None)
    output.note(*notes([msgspec.to_builtins(job) for job in answer.jobs]))
    return next((status for job in answer.jobs if (status := following.exit_status(job))), 0)


def waiting(answer: job_answers.JobList) -> list[str]:
    """Why jobs are pending, and which servers have problems."""
    pending = [job for job in answer.jobs if job.state == "pending" and job.reason]
    lines = [f"job {job.id} is pending: {job.reason} (see `gpq why {job.id}`)" for job in pending]
    return [*lines, *answer.warnings] if lines else []


class Bar:
    """Call `show` after every update, and `clear` before you write anything else. Does nothing if
    stderr is not a terminal."""

    def __init__(self) -> None:
        self.watched = sys.stderr.isatty()
        self._drawn = False
        self._starting = True

    def patience(self, longest: float) -> float:
        """Seconds until the next update."""
        if not self.watched or not self._starting:
            return longest
        return min(longest, SHORT_PAUSE if self._drawn else LONG_PAUSE)

    def show(self, jobs: Iterable[JobView]) -> None:
        """Show the first job that waits for files."""
        views = list(jobs)
        self._starting = any(job.state in BEGINNING for job in views)
        staging_job = next((job for job in views if job.staging is not None), None)
        if staging_job is None or not self.watched:
            self.clear()
            return
        text = bar_line(
            staging_job, plain.terminal_width() or 80, "█" if plain.ellipsis() == "…" else "#"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._drawn = True

    def note(self, *lines: str) -> None:
        """Print notes on stderr."""
        self.clear()
        output.note(*lines)

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def bar_line(job: JobView, width: int, full: str) -> str:
    """``job 4 [#### ] brings its checkpoint from a: 1 GB of 2 GB, 80 MB/s``, cut to the width."""
    staging = job.staging
    if staging is None:
        return ""
    progress = str(Staging(staging.what, staging.done, staging.total, staging.rate, staging.note))
    share = min(staging.done / staging.total, 1.0) if staging.total else 0.0
    cells = (full * int(CELLS * share)).ljust(CELLS)
    return plain.safe(f"job {job.id} [{cells}] {progress}")[: width - 1]
