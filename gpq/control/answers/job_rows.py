"""Live jobs -> the rows of a screen: the jobs that have GPUs, and as many waiting jobs as a person
reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpq.control.answers.reader import Reader
from gpq.core.model.jobs import Job
from gpq.rpc.job_answers import JobView

FOLDED = 4  # this many elements in a row that wait for the same thing become one row


def screen(reader: Reader, live: Sequence[Job], most: int) -> tuple[list[JobView], int]:
    """The rows of `live` in its order, and how many waiting jobs get no row. `most` limits the rows
    of waiting jobs. Consecutive elements of an array that wait for the same thing are one row
    (`JobView.alike`)."""
    rows: list[JobView] = []
    room, hidden = most, 0
    for run in _runs(reader, live):
        if run[0].placement is not None:
            rows += reader.jobs(run)
            continue
        if room <= 0:
            hidden += len(run)
            continue
        run_rows = _folded(reader, run, room)
        rows += run_rows
        room -= len(run_rows)
        hidden += len(run) - sum(row.alike for row in run_rows)
    return rows, hidden


def _runs(reader: Reader, live: Sequence[Job]) -> Iterator[list[Job]]:
    """Each job alone, except that elements of an array that wait for the same thing stay
    together."""
    run: list[Job] = []
    run_reason = ""
    for job in live:
        is_alike = job.spec.seat is not None and job.placement is None and not job.notices
        reason = reader.reason(job) if is_alike else ""
        if run and reason and reason == run_reason and _follows(run[-1], job):
            run.append(job)
            continue
        if run:
            yield run
        run, run_reason = [job], reason
    if run:
        yield run


def _follows(job: Job, next_job: Job) -> bool:
    seat, next_seat = job.spec.seat, next_job.spec.seat
    return (
        seat is not None
        and next_seat is not None
        and (seat.array, seat.index + 1) == (next_seat.array, next_seat.index)
        and job.state is next_job.state
        and job.spec.user == next_job.spec.user
    )


def _folded(reader: Reader, run: Sequence[Job], room: int) -> list[JobView]:
    """At most `room` rows of jobs that wait for the same thing."""
    if len(run) < FOLDED:
        return reader.jobs(run[:room])
    last = run[-1].spec.seat
    first = reader.job(run[0])
    return [
        msgspec.structs.replace(
            first, alike=len(run), last=int(run[-1].id), last_index=last.index if last else None
        )
    ]
