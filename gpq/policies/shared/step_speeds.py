"""How fast a job takes steps at its own batch size, and how many it has left, as far as an oracle
or its reports say."""

from __future__ import annotations

from collections.abc import Callable

from gpq.core.feasibility.shapes import node_counts, pack
from gpq.core.goodput.batches import limits_of, split_base
from gpq.core.goodput.goodput import iteration_time
from gpq.core.goodput.models import model_of
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Oracle
from gpq.core.model.units import Seconds
from gpq.policies.shared import loss_curve
from gpq.policies.shared.sizing import Contender

UNKNOWN_EPOCH = 0.1  # share of the steps so far that counts as an epoch if none was declared

StepSeconds = Callable[[int], Seconds | None]


def step_seconds(contender: Contender, oracle: Oracle | None) -> StepSeconds:
    """Seconds of a step at the requested batch size on this many GPUs, packed on the largest nodes.
    None if unknown, or if each GPU would get less than the smallest micro-batch."""
    sizes, level = node_counts(contender.offer), contender.job.spec.level
    model = model_of(contender.job.profile, contender.gpu_type) if oracle is None else None
    declaration = contender.job.profile.declared
    limits = limits_of(declaration, contender.gpu_type) if declaration is not None else None

    def seconds(replicas: int) -> Seconds | None:
        shape = pack(replicas, sizes, level, contender.gpu_type)
        if shape is None or (limits is not None and replicas * limits.min_atomic > limits.base):
            return None
        if oracle is not None:
            return oracle.step_seconds(shape)
        if model is None:
            return None
        return float(
            iteration_time(
                model.params, shape.nodes, shape.replicas, *split_base(model.limits, replicas)
            )
        )

    return seconds


def remaining_steps(job: Job, oracle: Oracle | None) -> float:
    """Steps left at the requested batch size: the oracle knows it. Otherwise the declared length
    says it, then the loss curve. Otherwise it is as many as were done."""
    if oracle is not None:
        return oracle.remaining_steps
    declaration, left = job.profile.declared, job.profile.length_left
    if declaration is not None and left is not None and declaration.batch_size > 0:
        return left / declaration.batch_size
    epoch, steps = _epoch_steps(job), steps_done(job)
    curve = loss_curve.fit(job.profile.losses)
    if curve is not None:
        return curve.remaining_steps(steps, epoch or UNKNOWN_EPOCH * steps)
    return max(steps, 1.0)


def _epoch_steps(job: Job) -> float:
    """Steps of an epoch. 0 if none was declared."""
    declaration = job.profile.declared
    if declaration is None or declaration.dataset_size <= 0 or declaration.batch_size <= 0:
        return 0.0
    return declaration.dataset_size / declaration.batch_size


def steps_done(job: Job) -> float:
    """Steps at the base batch size."""
    steps = 0.0
    if job.profile.progress is not None:
        steps = max(steps, job.profile.progress.base_steps)
    if job.profile.losses:
        steps = max(steps, job.profile.losses[-1].base_steps)
    return steps
