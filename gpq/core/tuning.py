"""Batch orders: the batch that a job starts an attempt with, and a better one while it runs (no restart)."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.core import estimates
from gpq.core.models import BatchOrder, Config, Job, Placement, Shape
from gpq.core.shapes import one_shape
from gpq.core.units import JobId


def typed(placement: Placement) -> Shape:
    """Its shape with its type, so that the batch is chosen by what was measured on that type."""
    return one_shape(placement.replicas, len(placement.parts), placement.gpu_type)


def first_order(job: Job, placement: Placement) -> BatchOrder:
    """The batch for a new attempt: the best for its shape, within the growth limit; the library's own choice while
    nothing is known."""
    choice = estimates.best_batch(job, typed(placement))
    if choice is None:
        return BatchOrder(job.order.seq + 1)
    return BatchOrder(job.order.seq + 1, choice.atomic_batch, choice.accum_steps)


def retunes(jobs: Sequence[Job], config: Config) -> dict[JobId, BatchOrder]:
    """New orders, for jobs where one promises `batch_hysteresis` more goodput than the batch in use, growing the total batch
    by at most `batch_growth`. An order that has not yet taken effect is waited for."""
    asked = [(job, job.placement) for job in jobs if job.placement is not None and _may_change(job)]
    prospects = estimates.prospects([_question(job, placement, config) for job, placement in asked])
    found: dict[JobId, BatchOrder] = {}
    for (job, _), prospect in zip(asked, prospects, strict=True):
        if prospect is None or prospect.best is None:
            continue
        best = prospect.best
        in_use = (job.profile.atomic_batch, job.profile.accum_steps)
        # What was ordered last and came out otherwise is more than the script allows: it is not ordered again.
        ordered = (job.order.atomic_batch, job.order.accum_steps)
        if (best.atomic_batch, best.accum_steps) in (in_use, ordered):
            continue
        if best.goodput > (1.0 + config.batch_hysteresis) * prospect.now:
            found[job.id] = BatchOrder(job.order.seq + 1, best.atomic_batch, best.accum_steps)
    return found


def _question(job: Job, placement: Placement, config: Config) -> tuple[Job, Shape, int, int, int]:
    atomic, accum = job.profile.atomic_batch, job.profile.accum_steps
    shape = typed(placement)
    return job, shape, int(shape.replicas * atomic * (accum + 1) * config.batch_growth), atomic, accum


def _may_change(job: Job) -> bool:
    return job.stop is None and job.profile.atomic_batch > 0 and job.order.seq <= job.profile.order_seq
