"""The errors of the throughput model at measured shapes, and therefore near them: a correction of
the fit.

The fit has seven numbers for everything, but a measured shape is known better than that. The
residuals of the fit are log measured over predicted, as means over the micro-batches of a shape.
Gaussian process regression smooths them over log2 K, separately within a server and across servers
(Rasmussen and Williams 2006, algorithm 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.goodput import ThroughputParams, stack, step_time
from gpq.core.goodput.observations import is_usable
from gpq.core.model.profile import ProfileRow

Array = NDArray[np.float64]

MODEL_ERROR = 0.15  # standard deviation of the logarithm of the model's error
REACH = 0.5  # doublings of K over which the error changes
STEP_NOISE = 0.2  # of one measured step. A mean over n steps has STEP_NOISE / sqrt(n)
FLOOR_NOISE = 0.01  # of a mean over very many steps


@dataclass(frozen=True, slots=True)
class Correction:
    """Knots of the regression: log2 K, across servers or not, and the weights of their kernels."""

    doublings: tuple[float, ...]
    across: tuple[bool, ...]
    weights: tuple[float, ...]

    def factor(self, nodes: NDArray[np.int64], replicas: NDArray[np.int64]) -> Array:
        """The factor for a predicted step time, for each shape."""
        if not self.weights:
            return np.ones(len(replicas))
        kernel = _kernel(
            np.log2(replicas), nodes > 1, np.array(self.doublings), np.array(self.across)
        )
        factors: Array = np.exp(kernel @ np.array(self.weights))
        return factors


NONE = Correction((), (), ())


def corrections(fits: Sequence[tuple[Sequence[ProfileRow], ThroughputParams]]) -> list[Correction]:
    """The correction of each fit to its rows."""
    usable = [list(filter(is_usable, rows)) for rows, _ in fits]
    counts = [len(rows) for rows in usable]
    if not sum(counts):
        return [NONE] * len(fits)
    nodes, replicas, atomic, measured = np.array(
        [
            (row.nodes, row.replicas, row.atomic_batch, row.step_time)
            for rows in usable
            for row in rows
        ]
    ).T
    params = stack([params for _, params in fits], counts)
    errors = np.log(
        measured / step_time(params, nodes[:, None], replicas[:, None], atomic[:, None])[:, 0]
    )
    answers, start = [], 0
    for rows, count in zip(usable, counts, strict=True):
        answers.append(_smooth(rows, errors[start : start + count].tolist()))
        start += count
    return answers


def _smooth(rows: Sequence[ProfileRow], errors: Sequence[float]) -> Correction:
    """`errors` is log measured / predicted, by row."""
    shapes: dict[tuple[int, int], tuple[float, float]] = {}  # steps, and the sum of their errors
    for row, error in zip(rows, errors, strict=True):
        steps, total = shapes.get((row.nodes, row.replicas), (0.0, 0.0))
        shapes[row.nodes, row.replicas] = steps + row.weight, total + row.weight * error
    if not shapes:
        return NONE
    keys = sorted(shapes)
    doublings, across = (
        np.log2([replicas for _, replicas in keys]),
        np.array([nodes > 1 for nodes, _ in keys]),
    )
    covariance = _kernel(doublings, across, doublings, across)
    steps, totals = np.array([shapes[key] for key in keys]).T
    covariance.flat[:: len(keys) + 1] += FLOOR_NOISE**2 + STEP_NOISE**2 / steps
    weights = np.linalg.solve(covariance, totals / steps)
    return Correction(tuple(doublings.tolist()), tuple(across.tolist()), tuple(weights.tolist()))


def _kernel(a: Array, a_across: NDArray[np.bool_], b: Array, b_across: NDArray[np.bool_]) -> Array:
    apart = (a[:, None] - b[None, :]) / REACH
    same = a_across[:, None] == b_across[None, :]
    covariance: Array = MODEL_ERROR**2 * np.exp(-0.5 * apart**2) * same
    return covariance
