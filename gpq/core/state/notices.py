"""The lines that a job keeps for its user."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.jobs import Job, JobState

MAX_NOTICES = 12


def with_notices(job: Job, *lines: str) -> Job:
    """`job` with more lines for its user, the newest last, each only once. Empty ones are no
    lines."""
    notices = job.notices
    for line in filter(None, lines):
        if notices[-1:] != (line,):
            notices = (*(other for other in notices if other != line), line)[-MAX_NOTICES:]
    return job if notices is job.notices else replace(job, notices=notices)


def without_hold(job: Job) -> Job:
    """`job` without the line on why it was held, which advises what no longer applies."""
    return replace(job, notices=tuple(line for line in job.notices if not line.startswith("held")))


def note_for_waiters(ended: Job) -> str:
    """The line for jobs that waited for this one, or "". They start, but may lack what it was to
    make."""
    if ended.state is not JobState.COMPLETED or ended.exit is None or not ended.exit.note:
        return ""
    return f"job {ended.id}, which it comes after, completed with a note: {ended.exit.note}"
