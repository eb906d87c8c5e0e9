"""What the simulator tells policies that were published with an oracle (Optimus+Oracle, Gavel):
true times, and the true work left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gpq.core.model.placements import Shape
from gpq.core.model.profile import ACCUMULATE
from gpq.core.model.units import Seconds
from gpq.sim.measurements.timings import NotMeasured
from gpq.sim.replay.physics import Running

_SLACK = 1e-8


@dataclass(frozen=True, slots=True)
class TrueOracle:
    """The oracle of one job, at the batch size that it asked for. Answers for packed shapes: full
    nodes of `node_sizes`, then the rest."""

    job: Running
    node_sizes: Mapping[str, int]  # GPUs of the largest node of each type

    @property
    def remaining_steps(self) -> float:
        """Optimiser steps left at the requested batch size, from the end of the present epoch (as
        in the artifact), at least one."""
        truth, batch = self.job.task.truth, self._total()
        past_steps = truth.iterations(batch, min(self.job.epoch + 1, truth.epochs))
        return max(truth.iterations(batch, truth.epochs) - past_steps, 1.0)

    def step_seconds(self, shape: Shape) -> Seconds | None:
        truth, batch = self.job.task.truth, self._total()
        gpu_type = shape.gpu_type
        if not gpu_type:  # a shape does not name the only type
            [gpu_type] = self.node_sizes
        size = self.node_sizes[gpu_type]
        remainder = shape.replicas % size
        counts = (size,) * (shape.replicas // size)
        if remainder:
            counts = (*counts, remainder)
        try:
            least, most = truth.measured(counts, gpu_type)
        except NotMeasured:
            return None
        local = ceil(batch / shape.replicas - _SLACK)
        accum = ceil(local / most - _SLACK) - 1
        if self.job.task.has_lost(ACCUMULATE):
            if accum > 0:
                return None
        elif shape.replicas == 1:
            accum = max(accum, 1)
        atomic = min(
            ceil(local / (accum + 1) - _SLACK),
            max(truth.max_batch, batch) // (shape.replicas * (accum + 1)),
        )
        if atomic < least:
            return None
        step, sync = truth.times(counts, atomic, gpu_type)
        return (step + accum * (step - sync)) * self.job.task.slowdown

    def _total(self) -> int:
        truth = self.job.task.truth
        return self.job.fixed_batch or self.job.task.batch_size or truth.base_batch
