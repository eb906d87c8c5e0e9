"""What the lab's own jobs would really do in the simulator, with their measurements as the truth.

A training script with a profile follows its fitted step-time model and its latest noise scale.
Everything else takes as long as it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpq.core.goodput.goodput import gain, grad_time, step_time
from gpq.core.goodput.models import Model, model_of
from gpq.core.model.profile import LossPoint, Profile
from gpq.core.model.units import Seconds
from gpq.sim.measurements.timings import NotMeasured


@dataclass(frozen=True, slots=True)
class LearntTruth:
    """An adaptive or resizable training script as gpq's model sees it. One epoch, as long as all
    its work."""

    name: str
    profile: Profile
    work: float  # base-batch steps
    most_replicas: int
    epochs: int = 1

    @property
    def base_batch(self) -> int:
        return self._model("").limits.base

    @property
    def max_batch(self) -> int:
        return self._model("").limits.maximum

    @property
    def fixed_batch(self) -> int:
        limits = self._model("").limits
        if limits.maximum > limits.base:
            return 0
        return limits.base

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        limits = self._model(gpu_type).limits
        return limits.min_atomic, limits.max_atomic

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        """Like `limits`, because a model answers for every shape."""
        return self.limits(gpu_type)

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        params = self._model(gpu_type).params
        step = float(step_time(params, len(counts), sum(counts), atomic))
        return step, max(step - float(grad_time(params, atomic)), 0.0)

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """Constant. Without a noise scale a larger batch is worth no more than the base batch
        size."""
        model = self._model("")
        if model.stats is None:
            return 1.0, 0.0
        return model.stats.sqr, model.stats.var / model.limits.base

    def progress(self, epoch: int) -> float:
        return self.work * epoch

    def iterations(self, total_batch: float, epoch: int) -> float:
        model = self._model("")
        return (
            self.work
            * epoch
            / float(gain(model.stats, model.limits.base, max(total_batch, model.limits.base)))
        )

    def loss(self, total_batch: float, progress: float) -> float:
        """As logged, the lowest so far, scaled from 1 to 0. A straight line if none was logged."""
        steps, losses = _curve(self.profile.losses, self.work)
        return float(np.interp(progress, steps, losses))

    def _model(self, gpu_type: str) -> Model:
        model = model_of(self.profile, gpu_type)
        assert model is not None  # `history` checked this
        return model


@dataclass(frozen=True, slots=True)
class FixedTruth:
    """A black box: `seconds` long on `replicas` GPUs. On fewer, which it never gets, they would
    take turns. Finish-time fairness compares with that."""

    name: str
    replicas: int
    seconds: Seconds
    epochs: int = 1

    @property
    def base_batch(self) -> int:
        return self.replicas

    @property
    def max_batch(self) -> int:
        return self.replicas

    @property
    def fixed_batch(self) -> int:
        return self.replicas

    @property
    def most_replicas(self) -> int:
        return self.replicas

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        return 1, 1

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        return 1, 1

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        if sum(counts) > self.replicas or atomic != 1:
            raise NotMeasured(f"{self.name} ran on {self.replicas} GPUs only")
        return 1.0, 0.0

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        return 1.0, 0.0

    def progress(self, epoch: int) -> float:
        return self.seconds * epoch

    def iterations(self, total_batch: float, epoch: int) -> float:
        return self.seconds * epoch

    def loss(self, total_batch: float, progress: float) -> float:
        return 1.0 - min(progress / self.seconds, 1.0)


def _curve(points: Sequence[LossPoint], work: float) -> tuple[list[float], list[float]]:
    straight_line = [0.0, work], [1.0, 0.0]
    if len(points) < 2:
        return straight_line
    values = np.minimum.accumulate([point.loss for point in points])
    if not np.isfinite(values).all() or values[0] <= values[-1]:
        return straight_line
    fractions = (values - values[-1]) / (values[0] - values[-1])
    return [point.base_steps for point in points], [float(value) for value in fractions]
