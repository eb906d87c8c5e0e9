"""Pollux's own model of a job (OSDI'21, sections 3 and 4.1): its seven parameters, their fit, its
choice of the batch size.

It is separate from gpq's own model because everything here is as published, so that comparisons are
valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpq.core.goodput.batches import CANDIDATES, BatchLimits
from gpq.core.goodput.goodput import GradientStats, efficiency, overlap
from gpq.core.model.profile import ProfileRow

Array = NDArray[np.float64]

# without statistics every batch size is as good as the base batch size
NO_NOISE = GradientStats(0.0, 1.0)
_LEAST = 1e-8  # s, stands for zero
_MOST_OVERLAP = 10.0
_OVERLAP_WEIGHT = 1e-3  # weight of the penalty (gamma - 1)^2
# weight of the penalty (beta / alpha)^2, which prefers synchronisation that does not grow
_GROWTH_WEIGHT = 1e-2
_INTER_PENALTY = 1.1  # synchronisation across nodes is at least a tenth slower than within one
_START = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
_ALPHA_C, _BETA_C, _ALPHA_N, _BETA_N, _ALPHA_R, _BETA_R, _GAMMA = range(7)
_SLACK = 1e-8  # tolerance of rounding up


@dataclass(frozen=True, slots=True)
class PolluxParams:
    """T_grad(m) = alpha_c + beta_c m. T_sync = 0 for one replica, alpha_r + beta_r (K - 2) within a
    node, alpha_n + beta_n (K - 2) across nodes. T_step = (T_grad^gamma + T_sync^gamma)^(1 / gamma).
    All in seconds."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Usable rows as columns. `sync` @ (alpha_n, beta_n, alpha_r, beta_r) is T_sync, except for the
    1e-8 of one replica."""

    atomic: Array
    log_grad: Array  # 0 if not measured
    log_step: Array
    grad_weights: Array  # 1 / (rows with a measured gradient time) for those, 0 for the others
    alone: Array
    sync: Array


@lru_cache(maxsize=4096)
def fit(rows: tuple[ProfileRow, ...]) -> PolluxParams | None:
    """Minimises RMSE of log T_grad plus RMSE of log T_step plus penalties, by L-BFGS-B. None
    without a usable row.

    Parameters that no row can show stay at their optimistic value (no synchronisation). All rows
    count the same, even if they stand for different numbers of steps, as in Pollux.
    """
    from scipy.optimize import minimize

    data, grad = _columns(rows)
    if data is None:
        return None
    theta, free = _start(data, grad)
    loss = _loss_of(data)

    def of_free(x: Array) -> tuple[float, Array]:
        theta[free] = x
        value, slope = loss(theta)
        return value, slope[free]

    lower = np.where(free == _GAMMA, 1.0, _LEAST)
    upper = np.where(free == _GAMMA, _MOST_OVERLAP, np.inf)
    result = minimize(
        of_free,
        theta[free],
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lower, upper, strict=True)),
    )
    theta[free] = result.x
    if not data.sync[:, 0].any():
        theta[_ALPHA_N] = max(theta[_ALPHA_N], _INTER_PENALTY * theta[_ALPHA_R])
        theta[_BETA_N] = max(theta[_BETA_N], _INTER_PENALTY * theta[_BETA_R])
    return PolluxParams(*theta.tolist())


def _columns(rows: Sequence[ProfileRow]) -> tuple[_Rows | None, Array]:
    """The columns, and the measured gradient times. With one replica the step is the gradient. If
    rows only have whole steps, these stand for the gradients too."""
    usable = [
        r
        for r in rows
        if r.atomic_batch > 0 and 0 < r.step_time < np.inf and 1 <= r.nodes <= r.replicas
    ]
    if not usable:
        return None, np.zeros(0)
    table = np.array(
        [(r.nodes, r.replicas, r.atomic_batch, r.grad_time, r.step_time) for r in usable],
        dtype=float,
    )
    nodes, replicas, atomic, grad, step = table.T
    grad = np.where(replicas <= 1, np.where(grad > 0, grad, step), grad)
    has_grad = (grad > 0) & np.isfinite(grad)
    if not has_grad.any():
        grad, has_grad = step, np.ones(len(step), dtype=bool)
    across, within = nodes > 1, (nodes <= 1) & (replicas > 1)
    extra_replicas = np.maximum(replicas - 2.0, _LEAST)
    sync = np.stack([across, across * extra_replicas, within, within * extra_replicas], axis=1)
    log_grad = np.log(np.where(has_grad, grad, 1.0))
    data = _Rows(
        atomic, log_grad, np.log(step), has_grad / has_grad.sum(), (replicas <= 1) * _LEAST, sync
    )
    return data, grad[has_grad]


def _start(data: _Rows, grad: Array) -> tuple[Array, NDArray[np.intp]]:
    """The start of the search, and which parameters it may change. The others stay."""
    theta, is_constant = _START.copy(), np.zeros(7, dtype=bool)
    if len(np.unique(data.atomic)) == 1:
        # half of the time is constant, which is optimistic about larger batches
        theta[_ALPHA_C], is_constant[_ALPHA_C] = grad.mean() / 2.0, True
    across, within = data.sync[:, 0] > 0, data.sync[:, 2] > 0
    if not across.any():
        is_constant[[_ALPHA_N, _BETA_N]] = True
    if not within.any():
        is_constant[[_ALPHA_R, _BETA_R]] = True
    if not (data.sync[:, [1, 3]] >= 1.0).any():
        is_constant[[_BETA_N, _BETA_R]] = True
    theta[is_constant & (np.arange(7) != _ALPHA_C)] = _LEAST
    return theta, np.flatnonzero(~is_constant)


def _loss_of(data: _Rows) -> Callable[[Array], tuple[float, Array]]:
    """The loss of a point and its gradient (analytic: a fit takes milliseconds)."""
    count = len(data.atomic)
    slope = np.zeros(7)

    def loss(theta: Array) -> tuple[float, Array]:
        gamma = theta[_GAMMA]
        compute = theta[_ALPHA_C] + theta[_BETA_C] * data.atomic
        sync = data.alone + data.sync @ theta[_ALPHA_N:_GAMMA]
        log_compute, log_sync = np.log(compute), np.log(sync)
        log_sum = np.logaddexp(gamma * log_compute, gamma * log_sync)
        # share of synchronisation in the growth of the step
        share = np.exp(gamma * log_sync - log_sum)
        off_grad, off_step = log_compute - data.log_grad, log_sum / gamma - data.log_step
        weighted = data.grad_weights * off_grad
        grad_error = float(weighted @ off_grad) ** 0.5
        step_error = float(off_step @ off_step / count) ** 0.5
        by_grad = weighted / max(grad_error, _LEAST)
        by_step = off_step / (count * max(step_error, _LEAST))
        by_compute = (by_grad + by_step * (1.0 - share)) / compute
        slope[_ALPHA_C], slope[_BETA_C] = by_compute.sum(), by_compute @ data.atomic
        slope[_ALPHA_N:_GAMMA] = (by_step * share / sync) @ data.sync
        mean = log_compute + share * (log_sync - log_compute)
        slope[_GAMMA] = by_step @ (mean - log_sum / gamma) / gamma + 2.0 * _OVERLAP_WEIGHT * (
            gamma - 1.0
        )
        value = grad_error + step_error + _OVERLAP_WEIGHT * (gamma - 1.0) ** 2
        for alpha, beta in ((_ALPHA_N, _BETA_N), (_ALPHA_R, _BETA_R)):
            ratio = theta[beta] / theta[alpha]
            value += _GROWTH_WEIGHT * ratio**2
            slope[beta] += 2.0 * _GROWTH_WEIGHT * ratio / theta[alpha]
            slope[alpha] -= 2.0 * _GROWTH_WEIGHT * ratio**2 / theta[alpha]
        return value, slope

    return loss


def best_batches(
    params: PolluxParams,
    stats: GradientStats | None,
    limits: BatchLimits,
    nodes: ArrayLike,
    replicas: ArrayLike,
) -> tuple[Array, Array, Array]:
    """(goodput, micro-batch, accumulation steps) of each (nodes, replicas): the best of 50 batch
    sizes from the base to the maximum, evenly spaced in logarithm. One replica exceeds the base
    batch size only through accumulation. Goodput 0 if none fits."""
    n = np.atleast_1d(np.asarray(nodes))
    k = np.atleast_1d(np.asarray(replicas, dtype=np.float64))[:, None]
    low = np.maximum(float(limits.base), limits.min_atomic * k)
    local = low * (limits.maximum / low) ** np.linspace(0.0, 1.0, CANDIDATES) / k
    accum = np.zeros_like(local)
    if limits.accumulation:
        accum = np.ceil(local / limits.max_atomic - _SLACK) - 1.0
    accum = np.where(
        (k == 1) & (local > limits.base + _SLACK) & limits.accumulation,
        np.maximum(accum, 1.0),
        accum,
    )
    atomic = np.ceil(local / (accum + 1.0) - _SLACK)
    extra_replicas = np.maximum(k - 2.0, _LEAST)
    within = params.alpha_r + params.beta_r * extra_replicas
    across = params.alpha_n + params.beta_n * extra_replicas
    sync = np.where(n[:, None] > 1, across, np.where(k > 1, within, _LEAST))
    compute = params.alpha_c + params.beta_c * atomic
    total = k * atomic * (accum + 1.0)
    speed = total / (accum * compute + overlap(params.gamma, compute, sync))
    fits = (atomic >= limits.min_atomic) & (atomic <= limits.max_atomic)
    fits &= (k > 1) | (accum > 0) | (local <= limits.base + _SLACK)
    value = np.where(fits, speed * efficiency(stats or NO_NOISE, limits.base, total), 0.0)
    best = np.argmax(value, axis=1)
    rows = np.arange(len(best))
    return value[rows, best], atomic[rows, best], accum[rows, best]
