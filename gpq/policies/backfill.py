"""First come, first served, and later jobs fill gaps (EASY backfilling: Lifka, 1995). Jobs are
gangs, and nothing moves."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Placement
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.policies.shared.eligible import waiting
from gpq.policies.shared.gangs import Seats
from gpq.policies.shared.remaining_time import Lengths

NEVER = float("inf")


class Backfill(Policy):
    """The order is priority, then submission. Running jobs keep what they have. The first job that
    does not fit gets a promise: the devices on which it will fit once enough running jobs have
    ended.

    Jobs behind it start if they fit now, and either end before that or leave these devices alone.
    `Lengths` gives the lengths, and a job of unknown length counts as endless. If an end that
    matters is unknown, there is no promise. Then any job that fits fills a gap, and the head may
    wait for long.
    """

    name = "backfill"
    sentence = "first come, first served, and later jobs fill gaps"
    gang = True
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        seats, lengths = Seats(snapshot, keep_running=True), Lengths(snapshot)
        ends = {
            job.id: _seconds(lengths, job)
            for job in snapshot.jobs.values()
            if job.placement is not None
        }
        promise: tuple[Seconds, Placement | None] | None = None
        for job in waiting(snapshot):
            seconds = _seconds(lengths, job)
            if promise is not None:
                seats.admit(job, None if seconds <= promise[0] else promise[1])
            elif seats.admit(job):
                ends[job.id] = seconds
            elif seats.could_ever(job):
                promise = _promise(seats, job, ends)
        return seats.allotments()


def _seconds(lengths: Lengths, job: Job) -> Seconds:
    seconds = lengths.to_end(job)
    if seconds is None:
        return NEVER
    return seconds


def _promise(
    seats: Seats, head: Job, ends: Mapping[JobId, Seconds]
) -> tuple[Seconds, Placement | None]:
    """When (seconds from now) and on which devices the head will fit. Never and None if that is
    unknown."""
    leavers: list[JobId] = []
    for seconds, name in sorted(
        (seconds, name) for name, seconds in ends.items() if seconds < NEVER
    ):
        leavers.append(name)
        place = seats.later(head, leavers)
        if place is not None:
            return seconds, place
    return NEVER, None
