"""What the simulator tells policies that were published with an oracle (Optimus+Oracle, Gavel): true times, true work left."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gpq.core.models import Seconds, Shape
from gpq.sim.running import Running
from gpq.sim.timings import NotMeasured

_SLACK = 1e-8


@dataclass(frozen=True, slots=True)
class TrueOracle:
    """Of one job, at the batch that it asked for. Answers for packed shapes: full nodes of `node_size`, then the rest."""

    job: Running
    node_size: dict[str, int]  # GPUs of a node, by type

    @property
    def remaining_steps(self) -> float:
        """Optimiser steps at the batch asked for, from the end of the epoch that is under way (as in the artifact), at least
        one."""
        truth, batch = self.job.task.truth, self._total()
        done = truth.iterations(batch, min(self.job.epoch + 1, truth.epochs))
        return max(truth.iterations(batch, truth.epochs) - done, 1.0)

    def step_seconds(self, shape: Shape) -> Seconds | None:
        truth, batch, gpu_type = self.job.task.truth, self._total(), shape.gpu_type
        if not gpu_type and len(self.node_size) == 1:  # where there is one type, a shape need not name it
            [gpu_type] = self.node_size
        size = self.node_size.get(gpu_type) or max(self.node_size.values())
        rest = shape.replicas % size
        counts = (size,) * (shape.replicas // size) + ((rest,) if rest else ())
        try:
            least, most = truth.measured(counts, gpu_type)
        except NotMeasured:
            return None
        local = ceil(batch / shape.replicas - _SLACK)
        accum = ceil(local / most - _SLACK) - 1
        if shape.replicas == 1:
            accum = max(accum, 1)
        atomic = min(ceil(local / (accum + 1) - _SLACK), max(truth.max_batch, batch) // (shape.replicas * (accum + 1)))
        if atomic < least:
            return None
        step, sync = truth.times(counts, atomic, gpu_type)
        return (step + accum * (step - sync)) * self.job.task.slowdown

    def _total(self) -> int:
        truth = self.job.task.truth
        return self.job.fixed_batch or self.job.task.batch_size or truth.base_batch
