"""What Pollux maximises, to compare allocations by it."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.feasibility.shapes import shape_on
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout
from gpq.core.model.policy import shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.lab.policies.pollux import FLOOR, restart_factor, shares, speedups
from gpq.lab.policies.sizing import entrants


def objective(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> float:
    """The fitness of an allocation by any policy: the harmonic mean of the utilities of all
    jobs that hold GPUs or could have some now. A job without a layout gets nothing."""
    round_ = entrants(snapshot)
    share = shares(snapshot, round_)
    costs = []
    for name in sorted({*round_.fixed_shapes, *(contender.job.id for contender in round_.contenders)}):
        job, allotment = snapshot.jobs[name], allocation.get(name)
        utility = 0.0
        if allotment is not None:
            shape = shape_of(allotment)
            table = speedups(job, shape.gpu_type, share[shape.gpu_type], shape.replicas)
            utility = float(table[int(shape.nodes > 1), shape.replicas]) * share[shape.gpu_type].scale
        if _differs(snapshot, job, allotment):
            utility *= restart_factor(job, snapshot.now, snapshot.config)
        costs.append(1.0 / (utility + FLOOR))
    if not costs:
        return 0.0
    return len(costs) / sum(costs)


def _differs(snapshot: Snapshot, job: Job, allotment: Allotment | None) -> bool:
    if job.placement is None or allotment is None:
        return job.placement is not None or allotment is not None
    if isinstance(allotment, Layout):
        return allotment.parts != job.placement.counts
    return allotment != shape_on(job.placement, snapshot)
