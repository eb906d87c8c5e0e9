"""How a loss will fall: the curve l(k) = 1 / (b0 k + b1) + b2 through the losses so far (Optimus,
EuroSys'18, 3.1).

k counts steps at the base batch size. Says nothing about speed.
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
CONVERGED = 0.01  # share of the fall so far that an epoch must gain, or training has converged
# how far the floor may be below the lowest loss, in units of the fall so far
_FLOORS = np.geomspace(1e-3, 30.0, 60)


@dataclass(frozen=True, slots=True)
class Curve:
    """l(k) = 1 / (b0 k + b1) + b2, falling. `fall`: the largest change of the loss so far, from
    highest to lowest."""

    b0: float  # > 0
    b1: float  # >= 0
    b2: float
    fall: float  # > 0

    def loss(self, steps: float) -> float:
        return 1.0 / (self.b0 * steps + self.b1) + self.b2

    def gain(self, steps: float, extra_steps: float) -> float:
        """What `extra_steps` after `steps` remove from the loss, in units of `fall`, so that jobs
        are comparable."""
        start, end = self.b0 * steps + self.b1, self.b0 * (steps + extra_steps) + self.b1
        if start <= 0:
            return 1.0
        return (1.0 / start - 1.0 / end) / self.fall

    def remaining_steps(self, steps: float, epoch: float) -> float:
        """Steps until `epoch` more steps gain less than `CONVERGED` of `fall`: b0 epoch / (b0 k +
        b1)^2 = CONVERGED fall."""
        end = (sqrt(self.b0 * epoch / (CONVERGED * self.fall)) - self.b1) / self.b0
        return max(end - steps, 0.0)


@lru_cache(maxsize=1024)
def fit(points: tuple[LossPoint, ...]) -> Curve | None:
    """Non-negative least squares of b0 k + b1 to 1 / (l - b2), weighted so that errors count as
    errors of l. This tries a series of floors b2 and keeps the best. None if there are too few
    points, or if the loss does not fall."""
    if len(points) < LEAST_POINTS:
        return None
    steps = np.array([point.base_steps for point in points])
    raw = np.array([point.loss for point in points])
    # each loss but the first and last is limited to the range of its neighbours, so that a spike is
    # no change
    middle = np.median(np.stack([raw[:-2], raw[1:-1], raw[2:]]), axis=0)
    losses = np.concatenate([raw[:1], middle, raw[-1:]])
    has_fallen = np.isfinite(losses).all() and losses.max() > losses.min()
    if not has_fallen or steps.max() <= 0:
        return None
    fall = float(losses.max() - losses.min())
    best_error, best = np.inf, None
    for floor in losses.min() - fall * _FLOORS:
        if losses.min() >= 0 > floor:
            floor = 0.0  # a loss that was never negative stays so
        error, curve = _curve(steps, losses, floor)
        if curve is not None and (best is None or error < best_error):
            best_error, best = error, curve
        if floor == 0.0:
            break
    return best


def _curve(steps: Array, losses: Array, floor: float) -> tuple[float, Curve | None]:
    """(mean squared error, the curve) above a floor. None if it does not fall."""
    from scipy.optimize import nnls

    fall, length = float(losses.max() - losses.min()), float(steps.max())
    above = losses - floor
    weight = above**2  # an error e of 1 / above is an error above^2 e of the loss
    solution, _ = nnls(np.stack([steps / length * weight, weight], axis=1), weight / above)
    b0, b1 = float(solution[0]), float(solution[1])
    if b0 <= 0:
        return np.inf, None
    error = float(
        np.mean((1.0 / np.maximum(b0 * steps / length + b1, 1e-300) + floor - losses) ** 2)
    )
    return error, Curve(b0 / length, b1, float(floor), fall)
