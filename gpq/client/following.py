"""Waits for jobs and cancels them, which takes longer than one request and may outlive a daemon.
`job_logs.py` reads their logs.

Prints nothing. The command line passes a `Watcher` that draws and prints notes, and gpq's Python
interface passes one that only logs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Protocol

import msgspec

from gpq.client.connection import Lasting
from gpq.errors import NeverStarts, TimedOut
from gpq.rpc import job_answers, requests

ENDED = ("completed", "failed", "cancelled", "timeout")
BEGINNING = ("pending", "starting")
LONGEST_RANGE = 100_000  # as in gpq.control.selectors
SLICE = 30.0  # seconds that one request waits for the end of jobs


class Watcher(Protocol):
    """Shows the progress of something that takes long."""

    @property
    def watched(self) -> bool:
        """Does it draw anything?"""

    def patience(self, longest: float) -> float:
        """Seconds that the next request may wait, at most `longest`."""

    def show(self, jobs: Iterable[job_answers.JobView]) -> None: ...

    def note(self, *lines: str) -> None: ...


def exit_status(job: job_answers.JobView) -> int:
    """The job's own exit status. 1 if it has none and did not complete."""
    if job.exit_status is not None:
        return job.exit_status
    if job.state == "completed":
        return 0
    return 1


def job_names(jobs: Iterable[int]) -> str:
    """`job 4` or `jobs 4, 5`."""
    numbers = list(map(str, jobs))
    word = "job" if len(numbers) == 1 else "jobs"
    return f"{word} {', '.join(numbers)}"


def ranges(jobs: Iterable[int]) -> list[str]:
    """Selectors of exactly these jobs in their order, such as `3-7`, `9`. None is too long."""
    groups = groupby(enumerate(jobs), lambda pair: (pair[1] - pair[0], pair[1] // LONGEST_RANGE))
    runs = ([job for _, job in group] for _, group in groups)
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def until_ended(
    jobs: list[str],
    seconds: float | None,
    watcher: Watcher,
    *,
    longest: Callable[[], float] = lambda: SLICE,
    listener: Callable[[job_answers.JobList], None] | None = None,
) -> job_answers.JobList:
    """The rows of the jobs once all have ended. Raises TimedOut after `seconds`, NeverStarts
    if those that are left do not start on their own, and NotFound for an unknown job.

    `longest` gives the seconds that the next request may wait. `listener` gets every answer.
    """
    until = math.inf if seconds is None else time.monotonic() + seconds
    daemon = Lasting(watcher.note)
    while True:
        patience = min(watcher.patience(longest()), until - time.monotonic())
        with daemon:  # closed in between, so that long waits do not use up the daemon's connections
            answer = daemon.call(requests.Wait(jobs, wait=max(patience, 0.0)), job_answers.JobList)
        watcher.show(answer.jobs)
        live = [job for job in answer.jobs if job.state not in ENDED]
        open_jobs = [job.id for job in live]
        if not open_jobs:
            return answer
        if all(job.halted for job in live):
            raise NeverStarts(
                f"waiting for {job_names(open_jobs)} is in vain: {live[0].halted}",
                f"`gpq requeue` runs the job that is named there again, and then the others go on."
                f" `gpq cancel {open_jobs[0]}` gives up",
            )
        if time.monotonic() >= until:
            raise TimedOut(
                f"{job_names(open_jobs)} did not end within {seconds:g} s",
                "they keep running: see `gpq status`",
            )
        if listener is not None:
            listener(answer)
        # a selector such as `all` keeps the meaning that it had at first
        jobs = [str(job.id) for job in answer.jobs]


def cancel_and_wait(
    daemon: Lasting,
    jobs: list[str],
    seconds: float,
    check: Callable[[list[job_answers.JobView]], None] = lambda rows: None,
) -> job_answers.CancelResult:
    """Cancel, and wait at most `seconds` for the end of all processes.

    `check` gets the live jobs before anything happens to them, and may raise. If the daemon is
    replaced during the wait, the next one reports as ended what the first one has cancelled.
    """
    before = daemon.call(requests.Select(jobs), job_answers.Selection)
    check(before.live)
    live_ids = [job.id for job in before.live]
    names = ranges([*live_ids, *before.ended])  # `all` keeps the meaning that it had at first
    answer = daemon.call(requests.Cancel(names, wait=seconds), job_answers.CancelResult)
    just_ended = set(live_ids).intersection(answer.ended)
    if not just_ended:
        return answer
    request = requests.Status(ranges(sorted(just_ended)))
    rows = daemon.call(request, job_answers.JobList).jobs
    cancelled_ids = [row.id for row in rows if row.state == "cancelled"]
    return msgspec.structs.replace(
        answer,
        cancelled=[*answer.cancelled, *cancelled_ids],
        ended=[job for job in answer.ended if job not in cancelled_ids],
    )
