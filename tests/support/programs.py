"""The truth of a simulated workload: what a job would really do on a shape. Policies never see it,
only its reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.goodput.goodput import GradientStats, ThroughputParams, gain, grad_time, step_time
from gpq.core.model.jobs import JobSpec
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Declared, Habit
from gpq.core.model.units import Seconds


@dataclass(frozen=True, slots=True)
class Program:
    """One job to come. Without `params` it is a black box that runs for `seconds` on any
    placement."""

    at: Seconds
    spec: JobSpec
    seconds: Seconds = 60.0
    params: ThroughputParams | None = None
    stats: GradientStats = field(default_factory=lambda: GradientStats(1.0, 1.0))
    declared: Declared = field(default_factory=lambda: Declared(adaptive=False))
    base_steps: float = 0.0  # work: steps at the base batch
    exit_code: int = 0
    checkpoint_seconds: Seconds = 1.0
    start_seconds: Seconds = 5.0  # from launch to the first step
    habits: tuple[Habit, ...] = ()  # habits of its loop, in its first report


def step_seconds(program: Program, shape: Shape, atomic_batch: int, accum_steps: int) -> tuple[Seconds, Seconds]:
    """(one micro-batch without synchronisation, the whole optimiser step)."""
    assert program.params is not None
    grad = float(grad_time(program.params, atomic_batch))
    last = float(step_time(program.params, shape.nodes, shape.replicas, atomic_batch))
    return grad, accum_steps * grad + last


def gain_of(program: Program, total_batch: int) -> float:
    """Base steps that one step at `total_batch` is worth."""
    return float(
        gain(
            program.stats,
            program.declared.batch_size,
            max(total_batch, program.declared.batch_size),
        )
    )


def default_batch(program: Program, replicas: int) -> tuple[int, int]:
    """What the training library uses without an order: the base batch size, split over the
    replicas, with accumulation if necessary."""
    declaration = program.declared
    local = -(-declaration.batch_size // replicas)
    largest = declaration.max_atomic_batch or local
    micro = -(-local // largest)
    return -(-local // micro), micro - 1
