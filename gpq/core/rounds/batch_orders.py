"""Batch orders: the batch with which a job starts an attempt, and a better one while it runs (no
restart)."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.core.feasibility.shapes import one_shape
from gpq.core.goodput import estimates
from gpq.core.goodput.batches import limits_of, split_base
from gpq.core.model.jobs import Job
from gpq.core.model.placements import BatchOrder, Placement, Shape
from gpq.core.model.profile import ACCUMULATE, RETUNE
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId


def typed_shape(placement: Placement) -> Shape:
    """Its shape with its type, so that the batch follows from measurements on that type."""
    return one_shape(placement.replicas, len(placement.parts), placement.gpu_type)


def first_order(job: Job, placement: Placement) -> BatchOrder:
    """The batch for a new attempt: the best for its shape within the growth limit. While nothing is
    known, the library chooses."""
    choice = estimates.best_batch(job, typed_shape(placement))
    if choice is None:
        return BatchOrder(job.order.seq + 1)
    return BatchOrder(job.order.seq + 1, choice.atomic_batch, choice.accum_steps)


def retunes(jobs: Sequence[Job], config: Config) -> dict[JobId, BatchOrder]:
    """New orders for jobs where one promises `batch_hysteresis` more goodput than the batch in use.
    They grow the batch size by at most `batch_growth`. gpq waits for an order that has not yet
    taken effect. Jobs whose batch or last order needs a freedom that was lost come first. They get
    a batch that does not need it, whatever it is worth."""
    orders = {job.id: order for job in jobs if (order := _way_back(job, config)) is not None}
    candidates = [
        (job, job.placement)
        for job in jobs
        if job.placement is not None
        and job.id not in orders
        and job.stop is None
        and job.profile.atomic_batch > 0
        and job.order.seq <= job.profile.order_seq
    ]
    prospects = estimates.prospects(
        [_question(job, placement, config) for job, placement in candidates]
    )
    for (job, _), prospect in zip(candidates, prospects, strict=True):
        if prospect is not None and (order := _better(job, prospect, config)) is not None:
            orders[job.id] = order
    return orders


def _better(job: Job, prospect: estimates.Prospect, config: Config) -> BatchOrder | None:
    """The order of a batch that promises enough more than the one in use."""
    best = prospect.best
    if best is None or best.goodput <= (1.0 + config.batch_hysteresis) * prospect.now:
        return None
    in_use = (job.profile.atomic_batch, job.profile.accum_steps)
    # If the last order had another result, the script does not allow it, and gpq does not repeat
    # it.
    last_order = (job.order.atomic_batch, job.order.accum_steps)
    if (best.atomic_batch, best.accum_steps) in (in_use, last_order):
        return None
    return BatchOrder(job.order.seq + 1, best.atomic_batch, best.accum_steps)


def needs_lost(job: Job) -> str:
    """The lost freedom that a running job's batch, or last order, needs. "" if it needs none."""
    declared, lost_freedoms = job.profile.declared, job.profile.lost
    if declared is None or job.placement is None:
        return ""
    batches = [
        (job.profile.atomic_batch, job.profile.accum_steps),
        (job.order.atomic_batch, job.order.accum_steps),
    ]
    for atomic, accum in batches:
        if ACCUMULATE in lost_freedoms and accum > 0:
            return ACCUMULATE
        # of the base batch, except for the remainder of the division
        base = -(-declared.batch_size // (job.replicas * (accum + 1)))
        if RETUNE in lost_freedoms and atomic > 0 and declared.batch_size > 0 and atomic != base:
            return RETUNE
    return ""


def _way_back(job: Job, config: Config) -> BatchOrder | None:
    """The order that needs no lost freedom: the best such batch, otherwise the base batch. If no
    GPU fits its share of that at once, the library chooses. None if no order is needed or it was
    already given."""
    declared, placement = job.profile.declared, job.placement
    if job.stop is not None or declared is None or placement is None or not needs_lost(job):
        return None
    _, shape, at_most, *_ = _question(job, placement, config)
    limits = limits_of(declared, shape.gpu_type)
    atomic = accum = 0  # leaves the choice to the library
    if (choice := estimates.best_batch(job, shape, at_most)) is not None:
        atomic, accum = choice.atomic_batch, choice.accum_steps
    elif limits is not None:
        atomic, accum = split_base(limits, shape.replicas)
        atomic = atomic if atomic <= limits.max_atomic else 0
    if (atomic, accum) == (job.order.atomic_batch, job.order.accum_steps):
        return None
    return BatchOrder(job.order.seq + 1, atomic, accum)


def _question(job: Job, placement: Placement, config: Config) -> tuple[Job, Shape, int, int, int]:
    atomic, accum = job.profile.atomic_batch, job.profile.accum_steps
    at_most = int(placement.replicas * atomic * (accum + 1) * config.batch_growth)
    return job, typed_shape(placement), at_most, atomic, accum
