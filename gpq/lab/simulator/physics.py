"""The physics of one simulated job: how far it gets in a stretch of time, and what it measures on
the way.

It follows the simulator of the OSDI'21 artifact. A start or restart holds its GPUs for a while
without progress. Then progress is gain / time of a step. The end of an epoch falls on a whole
second. The job chooses its batch size again at every epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log

import numpy as np

from gpq.core.goodput.noise_curve import record
from gpq.core.model.placements import Placement
from gpq.core.model.profile import ACCUMULATE, Noise, NoisePoint, ProfileRow
from gpq.core.model.units import NodeId, Seconds
from gpq.core.state.learn_profile import is_usable
from gpq.lab.measurements.ground_truth import Task

Batch = tuple[int, int]  # atomic batch, accumulation steps
_SLACK = 1e-8
_ROW_WEIGHT = 100.0  # steps of a simulated measurement
_NOISE_SAMPLES = 10_000  # samples of a simulated noise scale, enough to make it certain


@dataclass
class Running:
    """One submitted job. Its batch size is set from outside at each start, and requested after each
    epoch."""

    task: Task
    fixed_batch: int  # batch size. 0: as set
    rng: np.random.Generator | None  # for measurement errors. None: exact
    error: float = 0.0  # standard deviation of the logarithm of what is measured
    placement: Placement | None = None
    counts: tuple[int, ...] = ()
    gpu_type: str = ""
    batch: Batch = (0, 0)
    waiting: Seconds = 0.0  # of a restart that is still to pay
    epoch: int = 0
    progress: float = 0.0  # base-batch steps
    service: float = 0.0  # GPU-seconds
    ended_at: Seconds | None = None
    rows: dict[tuple[str, int, int, int], ProfileRow] = field(default_factory=dict)
    noise: Noise | None = None
    noise_curve: tuple[NoisePoint, ...] = ()
    measured: int = 0  # grows with every new row or noise scale
    stats: tuple[float, float] = (1.0, 0.0)

    @property
    def replicas(self) -> int:
        return sum(self.counts)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes that it uses."""
        if self.placement is None:
            return ()
        return tuple(node for node, _ in self.placement.parts)

    def total_batch(self) -> int:
        return self.replicas * self.batch[0] * (self.batch[1] + 1)

    def base_choice(self) -> Batch:
        """The batch size before anything is known: the requested one, or the base batch size, split
        as necessary."""
        truth = self.task.truth
        least, most = self.bounds()
        total = self.fixed_batch or max(truth.base_batch, least * self.replicas)
        local = ceil(total / self.replicas - _SLACK)
        if self.task.has_lost(ACCUMULATE):
            return self._cap((local, 0))
        accum = ceil(local / most - _SLACK) - 1
        if self.fixed_batch and self.replicas == 1 and total > truth.base_batch:
            accum = max(accum, 1)  # a single gradient has no noise scale of its own (Pollux)
        return self._cap((ceil(local / (accum + 1) - _SLACK), accum))

    def bounds(self) -> tuple[int, int]:
        """(least, most) micro-batch on its GPUs."""
        return self.task.truth.measured(self.counts, self.gpu_type)

    def set_batch(self, batch: Batch | None) -> None:
        """None: the batch size before anything is known."""
        if self.fixed_batch or batch is None:
            self.batch = self.base_choice()
        else:
            self.batch = self._cap(batch)

    def _cap(self, batch: Batch) -> Batch:
        count = self.replicas * (batch[1] + 1)
        largest = max(self.task.truth.max_batch, self.fixed_batch) // count
        return max(min(batch[0], largest), 1), batch[1]

    def times(self) -> tuple[Seconds, Seconds]:
        """True (micro-batch without synchronisation, whole optimiser step)."""
        step, sync = self.task.truth.times(self.counts, self.batch[0], self.gpu_type)
        grad = step - sync
        return grad, step + grad * self.batch[1]

    def speed(self) -> float:
        """True progress, base-batch steps per second."""
        scale = self.total_batch() / self.task.truth.base_batch
        sqr, var = self.stats
        return (var + sqr) / (var / scale + sqr) / self.times()[1] / self.task.slowdown

    def measure(self) -> None:
        """What the job learns about its present configuration. One sample suffices."""
        truth = self.task.truth
        sqr, var = self.stats = truth.stats(self.total_batch(), self.epoch)
        key = (self.gpu_type, len(self.counts), self.replicas, self.batch[0])
        if key not in self.rows:
            step, sync = truth.times(self.counts, self.batch[0], self.gpu_type)
            grad_error, step_error = self._error(), self._error()
            self.rows[key] = ProfileRow(
                key[1],
                key[2],
                key[3],
                (step - sync) * grad_error,
                max(step * step_error, (step - sync) * grad_error),
                _ROW_WEIGHT,
                key[0],
            )
            self.measured += 1
        noise = Noise(sqr, var * truth.base_batch * self._error(), _NOISE_SAMPLES)
        if self.noise is None or (noise.sqr, noise.var) != (self.noise.sqr, self.noise.var):
            self.noise = noise
            if is_usable(noise):
                self.noise_curve = record(self.noise_curve, self.progress, noise)
            self.measured += 1

    def _error(self) -> float:
        """The error factor of the next measurement."""
        if self.rng is None:
            return 1.0
        return float(np.exp(self.error * self.rng.standard_normal()))

    def advance(self, now: Seconds, seconds: Seconds, choose: Callable[[], Batch | None]) -> None:
        """Run for `seconds` from `now` on, or to its end. `choose` gives the batch size of the next
        epoch."""
        if self.placement is None or self.ended_at is not None:
            return
        delay = min(self.waiting, seconds)
        self.waiting -= delay
        self.service += delay * self.replicas
        now, budget, truth = now + delay, seconds - delay, self.task.truth
        while budget > 0 and self.ended_at is None:
            self.measure()
            speed = self.speed()
            goal = truth.progress(self.epoch + 1)
            if self.progress + speed * budget < goal:
                self.progress += speed * budget
                now, spent, budget = now + budget, budget, 0.0
            else:
                spent = min(float(round((goal - self.progress) / speed)), budget)
                self.progress = goal
                self.epoch += 1
                now, budget = now + spent, budget - spent
                if self.epoch >= truth.epochs:
                    self.ended_at = now
            self.service += spent * self.replicas
            if self.ended_at is None and not self.fixed_batch:
                self.set_batch(choose())

    def seconds_to_end(self) -> Seconds:
        """At the present speed, an estimate of when to check again, never past the end of this
        epoch."""
        if self.placement is None:
            return float("inf")
        self.stats = self.task.truth.stats(self.total_batch(), self.epoch)
        goal = self.task.truth.progress(self.epoch + 1)
        if self.epoch + 1 < self.task.truth.epochs:
            return float("inf")
        # Never 0: `advance` rounds what is left to whole seconds, and of less than half a one would
        # make nothing, for ever.
        return self.waiting + max(float(ceil((goal - self.progress) / self.speed())), 1.0)

    def start(self, placement: Placement | None, restart: Seconds) -> None:
        """Give it these GPUs, or none."""
        self.placement = placement
        self.counts, self.gpu_type, self.waiting = (), "", 0.0
        if placement:
            # fullest node first, as the artifact lists them
            counts = (len(devices) for _, devices in placement.parts)
            self.counts = tuple(sorted(counts, reverse=True))
            self.gpu_type, self.waiting = placement.gpu_type, restart

    @property
    def fraction(self) -> float:
        return self.progress / self.task.truth.progress(self.task.truth.epochs)


def geometric_batches(least: int, most: int, count: int) -> list[int]:
    """`count` micro-batches from least to most, evenly spaced in their logarithm, without
    repetition."""
    if most <= least:
        return [least]
    sizes = np.exp(np.linspace(log(least), log(most), count))
    return sorted({round(float(value)) for value in sizes})
