"""Shortest remaining time first: the least mean completion time if lengths are known. Jobs are
gangs and may be preempted."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment, Job, arrival
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.policies.shared.eligible import eligible
from gpq.policies.shared.gangs import seat_all
from gpq.policies.shared.remaining_time import Lengths


class Srtf(Policy):
    """The job that would end soonest goes first. Its time is what remains and, if it does not run,
    a restart (`Lengths.to_end`).

    Jobs of unknown length come last, in the order of submission. Each gets its gang if it still
    fits.
    """

    name = "srtf"
    sentence = "shortest remaining time first"
    gang = True
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        lengths = Lengths(snapshot)

        def rank(job: Job) -> tuple[int, Seconds, float, JobId]:
            priority, submitted, number = arrival(job)
            seconds = lengths.to_end(job)
            return priority, float("inf") if seconds is None else seconds, submitted, number

        return seat_all(snapshot, sorted(eligible(snapshot), key=rank))
