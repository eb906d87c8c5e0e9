"""Themis (Mahajan et al., NSDI'20): the job that is treated worst goes first. Jobs are gangs and
hold leases."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.accounting.fairness import active, devices_up, finish_time_fairness
from gpq.core.model.jobs import Allotment, Job, arrival
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.policies.shared.eligible import eligible
from gpq.policies.shared.gangs import seat_all
from gpq.policies.shared.remaining_time import Lengths

# a job keeps its GPUs this long (the paper leases for tens of minutes)
LEASE: Seconds = 900.0


class Themis(Policy):
    """The job with the worst finish-time fairness gets GPUs first: rho = (age + remaining) / (time
    alone on a 1/J share).

    The remaining time is at the gang's size. Alone, a job whose gang is larger than its share would
    have it for part of the time. A job of unknown length has as much ahead as the service it
    attained, in seconds of its gang. A job that never started counts as the worst.
    """

    name = "themis"
    sentence = "Themis (NSDI'20): the job with the worst finish-time fairness first"
    gang = True
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        lengths = Lengths(snapshot)
        share = devices_up(snapshot) / max(len(active(snapshot)), 1)

        def rank(job: Job) -> tuple[bool, int, float, float, JobId]:
            priority, submitted, number = arrival(job)
            has_lease = job.launched_at is not None and snapshot.now - job.launched_at < LEASE
            return (
                not has_lease,
                priority,
                -rho(job, snapshot.now, lengths.left(job), share),
                submitted,
                number,
            )

        return seat_all(snapshot, sorted(eligible(snapshot), key=rank))


def rho(job: Job, now: Seconds, seconds: Seconds | None, share: float) -> float:
    """Finish-time fairness if the job had its gang from now on. `share`: GPUs that it would have
    alone."""
    service = job.service_at(now) / job.spec.min_gpus
    if service <= 0:
        return float("inf")
    remaining = service if seconds is None else seconds
    alone = None
    if share > 0:
        alone = (service + remaining) * max(job.spec.min_gpus / share, 1.0)
    fairness = finish_time_fairness(now - job.submitted_at, remaining, alone)
    if fairness is None:
        return float("inf")
    return fairness
