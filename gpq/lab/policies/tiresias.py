"""Tiresias (Gu et al., NSDI'19): least attained service first, in two queues. Jobs are gangs, and
jobs ahead preempt them."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment, Job, arrival
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import eligible
from gpq.policies.shared.gangs import seat_all

DEMOTED_AT = 16 * 3600.0  # GPU-seconds of attained service, as in the Pollux artifact's Tiresias


class Tiresias(Policy):
    """Jobs with less than 16 GPU hours of attained service go before the others. Within a queue the
    earlier submission goes first.

    In that order each job gets its gang if it still fits, so later ones fill gaps. No job returns
    to the first queue. Gangs go to the emptiest nodes, as in the artifact.
    """

    name = "tiresias"
    sentence = "Tiresias (NSDI'19): least attained service first, in two queues"
    gang = True
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        def rank(job: Job) -> tuple[int, bool, float, JobId]:
            priority, submitted, number = arrival(job)
            return priority, job.service_at(snapshot.now) >= DEMOTED_AT, submitted, number

        return seat_all(snapshot, sorted(eligible(snapshot), key=rank), spread=True)
