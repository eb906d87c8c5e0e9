"""Batch orders: the batch that a job starts an attempt with, and a better one while it runs (no restart)."""

from __future__ import annotations

from gpq.core import estimates
from gpq.core.models import BatchOrder, Config, Job, Placement, Shape


def typed(placement: Placement) -> Shape:
    """Its shape with its type, so that the batch is chosen by what was measured on that type."""
    return Shape(placement.replicas, len(placement.parts), placement.gpu_type)


def first_order(job: Job, placement: Placement) -> BatchOrder:
    """The batch for a new attempt: the best for its shape, within the growth limit; the library's own choice while
    nothing is known."""
    choice = estimates.best_batch(job, typed(placement))
    if choice is None:
        return BatchOrder(job.order.seq + 1)
    return BatchOrder(job.order.seq + 1, choice.atomic_batch, choice.accum_steps)


def retune(job: Job, config: Config) -> BatchOrder | None:
    """A new order when it promises `batch_hysteresis` more goodput than the batch in use, growing the total batch by
    at most `batch_growth`; None to stay. An order that has not yet taken effect is waited for."""
    profile, placement = job.profile, job.placement
    if placement is None or job.stop is not None or profile.atomic_batch <= 0:
        return None
    in_use = (profile.atomic_batch, profile.accum_steps)
    if job.order.seq > profile.order_seq:
        return None
    total = placement.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    choice = estimates.best_batch(job, typed(placement), at_most=int(total * config.batch_growth))
    now = estimates.goodput_of(job, typed(placement), *in_use)
    if choice is None or now is None:
        return None
    # What was ordered last and came out otherwise is more than the script allows: it is not ordered again.
    ordered = (job.order.atomic_batch, job.order.accum_steps)
    if (choice.atomic_batch, choice.accum_steps) in (in_use, ordered):
        return None
    if choice.goodput <= (1.0 + config.batch_hysteresis) * now:
        return None
    return BatchOrder(job.order.seq + 1, choice.atomic_batch, choice.accum_steps)
