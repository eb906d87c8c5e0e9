"""What a launch with another number of GPUs promises. Decides nothing."""

from __future__ import annotations

from gpq.core.goodput.priors import timed
from gpq.core.model.accounts import Promise
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.rounds.motives import goodput_ratio


def promise(snapshot: Snapshot, job: Job, placement: Placement) -> Promise | None:
    """None for a first start, for as many GPUs as before, and if the goodput is not known."""
    if not job.attempt or placement.replicas == job.last_replicas:
        return None
    ratio = goodput_ratio(timed(job, snapshot), placement)
    if ratio is None:
        return None
    return Promise(ratio, snapshot.config.restart_cost(job))
