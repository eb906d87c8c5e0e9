"""Live jobs -> the rows of a screen: those that have GPUs, and of those that wait no more than a
person reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpq.control.answers.reader import Reader
from gpq.core.model.jobs import Job
from gpq.rpc.job_answers import JobView

FOLDED = 4  # elements in a row that wait for the same, from which on they are one row


def screen(reader: Reader, live: Sequence[Job], most: int) -> tuple[list[JobView], int]:
    """Rows of `live` in its order, and how many jobs that wait have none: `most` rows are for those
    that do. Elements of an array that follow each other and wait for the same are one row
    (`JobView.alike`)."""
    rows: list[JobView] = []
    left, hidden = most, 0
    for run in _runs(reader, live):
        if run[0].placement is not None:
            rows += reader.jobs(run)
            continue
        if left <= 0:
            hidden += len(run)
            continue
        shown = _folded(reader, run, left)
        rows += shown
        left -= len(shown)
        hidden += len(run) - sum(row.alike for row in shown)
    return rows, hidden


def _runs(reader: Reader, live: Sequence[Job]) -> Iterator[list[Job]]:
    """Each job alone, but for elements of an array that wait for the same: these together."""
    run: list[Job] = []
    said = ""
    for job in live:
        reason = reader.reason(job) if job.spec.seat is not None and job.placement is None else ""
        if run and reason and reason == said and _follows(run[-1], job):
            run.append(job)
            continue
        if run:
            yield run
        run, said = [job], reason
    if run:
        yield run


def _follows(job: Job, after: Job) -> bool:
    one, other = job.spec.seat, after.spec.seat
    return (
        one is not None
        and other is not None
        and (one.array, one.index + 1) == (other.array, other.index)
        and job.state is after.state
        and job.spec.user == after.spec.user
    )


def _folded(reader: Reader, run: Sequence[Job], left: int) -> list[JobView]:
    """At most `left` rows of jobs that wait for the same."""
    if len(run) < FOLDED:
        return reader.jobs(run[:left])
    last = run[-1].spec.seat
    first = reader.job(run[0])
    return [
        msgspec.structs.replace(
            first, alike=len(run), last=int(run[-1].id), last_index=last.index if last else None
        )
    ]
