"""What the throughput model gets wrong at the shapes that were measured, and therefore near them: a correction of the fit.

The fit has seven numbers for everything; a shape that was measured is known better than that. The residuals of the fit
(log measured over predicted, mean over the atomic batches of a shape) are smoothed by Gaussian process regression over
log2 K, within a node and across nodes apart (Rasmussen and Williams 2006, algorithm 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput import ThroughputParams, step_time
from gpq.core.profile import ProfileRow

Array = NDArray[np.float64]

MODEL_ERROR = 0.15  # standard deviation of the logarithm of what the model gets wrong
REACH = 0.5  # doublings of K over which that changes
STEP_NOISE = 0.2  # of one measured step; a mean over n steps has STEP_NOISE / sqrt(n)
FLOOR_NOISE = 0.01  # of a mean over very many


@dataclass(frozen=True, slots=True)
class Correction:
    """Knots of the regression: log2 K, across nodes or not, and the weights of their kernels."""

    doublings: tuple[float, ...]
    across: tuple[bool, ...]
    alone: tuple[bool, ...]
    weights: tuple[float, ...]

    def factor(self, nodes: NDArray[np.int64], replicas: NDArray[np.int64]) -> Array:
        """What a predicted step time is to be multiplied by, for each shape."""
        if not self.weights:
            return np.ones(len(replicas))
        kernel = _kernel(np.log2(replicas), nodes > 1, np.array(self.doublings), np.array(self.across))
        found: Array = np.exp(kernel @ np.array(self.weights))
        return found


NONE = Correction((), (), (), ())


@lru_cache(maxsize=8192)
def correction(rows: tuple[ProfileRow, ...], params: ThroughputParams) -> Correction:
    """Of a fit to these rows."""
    shapes: dict[tuple[int, int], list[ProfileRow]] = {}
    for row in rows:
        if row.weight > 0 and row.step_time > 0:
            shapes.setdefault((row.nodes, row.replicas), []).append(row)
    if not shapes:
        return NONE
    keys = sorted(shapes)
    table = [(_residual(shapes[key], params)) for key in keys]
    nodes, replicas = np.array(keys).T
    doublings, across = np.log2(replicas), nodes > 1
    covariance = _kernel(doublings, across, doublings, across)
    covariance[np.diag_indices_from(covariance)] += [FLOOR_NOISE**2 + STEP_NOISE**2 / steps for _, steps in table]
    weights = np.linalg.solve(covariance, np.array([value for value, _ in table]))
    return Correction(tuple(doublings.tolist()), tuple(across.tolist()), (), tuple(weights.tolist()))


def _residual(rows: Sequence[ProfileRow], params: ThroughputParams) -> tuple[float, float]:
    """(mean log measured / predicted step time of one shape, steps it rests on)."""
    atomic = np.array([row.atomic_batch for row in rows])
    weight = np.array([row.weight for row in rows])
    measured = np.array([row.step_time for row in rows])
    predicted = step_time(params, rows[0].nodes, rows[0].replicas, atomic)
    return float(weight @ np.log(measured / predicted) / weight.sum()), float(weight.sum())


def _kernel(a: Array, a_across: NDArray[np.bool_], b: Array, b_across: NDArray[np.bool_]) -> Array:
    apart = (a[:, None] - b[None, :]) / REACH
    same = a_across[:, None] == b_across[None, :]
    found: Array = MODEL_ERROR**2 * np.exp(-0.5 * apart**2) * same
    return found
