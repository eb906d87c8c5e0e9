"""How a loss will fall: the curve l(k) = 1 / (b0 k + b1) + b2 through what was seen of it (Optimus,
EuroSys'18, 3.1).

k counts steps of the base batch. Says nothing about speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from gpq.core.model.profile import LossPoint

Array = NDArray[np.float64]

LEAST_POINTS = 4
CONVERGED = 0.01  # of the whole fall so far: what an epoch must gain, or training has converged
# how far the floor may lie below the lowest loss, in units of the fall so far
_FLOORS = np.geomspace(1e-3, 30.0, 60)


@dataclass(frozen=True, slots=True)
class Curve:
    """l(k) = 1 / (b0 k + b1) + b2, falling; `fall`: the largest change of the loss so far, from
    highest to lowest."""

    b0: float  # > 0
    b1: float  # >= 0
    b2: float
    fall: float  # > 0

    def loss(self, steps: float) -> float:
        return 1.0 / (self.b0 * steps + self.b1) + self.b2

    def gained(self, steps: float, more: float) -> float:
        """What `more` steps after `steps` take off the loss, in units of `fall`; so jobs can be
        compared."""
        here, there = self.b0 * steps + self.b1, self.b0 * (steps + more) + self.b1
        return (1.0 / here - 1.0 / there) / self.fall if here > 0 else 1.0

    def remaining_steps(self, steps: float, epoch: float) -> float:
        """Until `epoch` more steps gain less than `CONVERGED` of `fall`: b0 epoch / (b0 k + b1)^2 =
        CONVERGED fall."""
        end = (sqrt(self.b0 * epoch / (CONVERGED * self.fall)) - self.b1) / self.b0
        return max(end - steps, 0.0)


@lru_cache(maxsize=1024)
def fit(points: tuple[LossPoint, ...]) -> Curve | None:
    """Non-negative least squares of b0 k + b1 to 1 / (l - b2), errors weighted so that they count
    as errors of l, for a row of floors b2; the best of them. None: too few points, or a loss that
    does not fall."""
    if len(points) < LEAST_POINTS:
        return None
    steps = np.array([point.base_steps for point in points])
    raw_losses = np.array([point.loss for point in points])
    losses = _without_outliers(raw_losses)
    fall = float(losses.max() - losses.min())
    length = float(steps.max())
    if not (np.isfinite(losses).all() and fall > 0 and length > 0):
        return None
    best: tuple[float, Curve] | None = None
    for floor in losses.min() - fall * _FLOORS:
        if losses.min() >= 0 > floor:
            floor = 0.0  # a loss that was never negative will not be
        b0, b1 = _line(steps / length, losses - floor)
        if b0 <= 0:
            continue
        curve = Curve(b0 / length, b1, float(floor), fall)
        error = float(
            np.mean((1.0 / np.maximum(b0 * steps / length + b1, 1e-300) + floor - losses) ** 2)
        )
        if best is None or error < best[0]:
            best = error, curve
        if floor == 0.0:
            break
    return best[1] if best is not None else None


def _line(steps: Array, above: Array) -> tuple[float, float]:
    """(b0, b1) >= 0 of 1 / above. An error e there is an error above^2 e of the loss."""
    from scipy.optimize import nnls

    weight = above**2
    solution, _ = nnls(np.stack([steps * weight, weight], axis=1), weight / above)
    return float(solution[0]), float(solution[1])


def _without_outliers(losses: Array) -> Array:
    """Each loss but the first and last within the range of its neighbours: their median (a spike is
    no change)."""
    middle = np.median(np.stack([losses[:-2], losses[1:-1], losses[2:]]), axis=0)
    return np.concatenate([losses[:1], middle, losses[-1:]])
