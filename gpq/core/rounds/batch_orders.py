"""Batch orders: the batch with which a job starts an attempt, and a better one while it runs (no
restart)."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.core.feasibility.shapes import one_shape
from gpq.core.goodput import estimates
from gpq.core.goodput.batches import limits_of, split_base
from gpq.core.model.jobs import Job
from gpq.core.model.placements import BatchOrder, Placement, Shape
from gpq.core.model.profile import ACCUMULATE, RETUNE, Declared
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
    orders = {
        job.id: order
        for job in jobs
        if job.profile.habits and (order := _way_back(job, config)) is not None
    }
    candidates = [
        (job, job.placement)
        for job in jobs
        if job.placement is not None and job.id not in orders and _may_change(job)
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
    declared, placement = job.profile.declared, job.placement
    if not job.profile.habits or declared is None or placement is None:
        return ""
    lost_freedoms = job.profile.lost
    batches = [
        (job.profile.atomic_batch, job.profile.accum_steps),
        (job.order.atomic_batch, job.order.accum_steps),
    ]
    for atomic, accum in batches:
        if ACCUMULATE in lost_freedoms and accum > 0:
            return ACCUMULATE
        if (
            RETUNE in lost_freedoms
            and atomic > 0
            and not _is_base(declared, placement.replicas, atomic, accum)
        ):
            return RETUNE
    return ""


def _is_base(declared: Declared, replicas: int, atomic: int, accum: int) -> bool:
    """Is it the base batch, except for the remainder of the division?"""
    return declared.batch_size <= 0 or atomic == -(-declared.batch_size // (replicas * (accum + 1)))


def _way_back(job: Job, config: Config) -> BatchOrder | None:
    """The order that needs no lost freedom: the best such batch, otherwise the base batch. If no
    GPU fits its share of that at once, the library chooses. None if no order is needed or it was
    already given."""
    declared, placement = job.profile.declared, job.placement
    if job.stop is not None or declared is None or placement is None or not needs_lost(job):
        return None
    atomic, accum = _free_batch(job, declared, placement, config)
    if (atomic, accum) == (job.order.atomic_batch, job.order.accum_steps):
        return None
    return BatchOrder(job.order.seq + 1, atomic, accum)


def _free_batch(
    job: Job, declared: Declared, placement: Placement, config: Config
) -> tuple[int, int]:
    """The micro-batch and the accumulation steps that need no lost freedom. A micro-batch of 0
    leaves the choice to the library."""
    job, shape, at_most, *_ = _question(job, placement, config)
    limits = limits_of(declared, shape.gpu_type)
    if limits is None:
        return 0, 0
    choice = estimates.best_batch(job, shape, at_most)
    if choice is not None:
        return choice.atomic_batch, choice.accum_steps
    atomic, accum = split_base(limits, shape.replicas)
    return (atomic, accum) if atomic <= limits.max_atomic else (0, accum)


def _question(job: Job, placement: Placement, config: Config) -> tuple[Job, Shape, int, int, int]:
    atomic, accum = job.profile.atomic_batch, job.profile.accum_steps
    shape = typed_shape(placement)
    return (
        job,
        shape,
        int(shape.replicas * atomic * (accum + 1) * config.batch_growth),
        atomic,
        accum,
    )


def _may_change(job: Job) -> bool:
    return (
        job.stop is None and job.profile.atomic_batch > 0 and job.order.seq <= job.profile.order_seq
    )
