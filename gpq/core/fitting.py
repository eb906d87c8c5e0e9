"""Profile -> throughput parameters: a robust, weighted maximum a posteriori fit in log time, in milliseconds.

Residuals are logarithms of predicted over measured times, so that a percent counts the same for short and long steps.
Priors keep what few rows cannot tell near what is usual, and fade as rows come in. What no row can tell is optimistic
(as Pollux): a program seen on one GPU is taken to scale perfectly, until it is seen on two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput import ThroughputParams, crowding
from gpq.core.profile import ProfileRow

Array = NDArray[np.float64]

# Fitted in these coordinates, all of them free of bounds:
#   log alpha_c, log beta_c, log alpha_r, log(beta_r / alpha_r), log alpha_n, log(beta_n / alpha_n),
#   log(delta_n / alpha_n), log(gamma - 1)
_ALPHA_C, _BETA_C, _ALPHA_R, _SLOPE_R, _ALPHA_N, _SLOPE_N, _CROWD_N, _OVERLAP = range(8)
# Standard deviations of the priors. The scales are left almost free; the shapes (growth per doubling of K, crowding,
# overlap) are what a handful of rows cannot tell apart from noise.
_SPREAD = np.array([20.0, 20.0, 20.0, 1.0, 20.0, 0.7, 0.8, 0.9])
_STIFFNESS = np.diag(_SPREAD**-2.0)
_USUAL_SLOPE_R, _USUAL_SLOPE_N, _USUAL_CROWD_N = 0.3, 0.12, 0.2
_STEP_ERROR = 0.1  # relative error of the step model at which a row begins to count as an outlier
_LEAST_ERROR = 0.002  # what the rows may bring that down to
_SPARE_ROWS = 8  # rows beyond the number of parameters from which on they may
_GRAD_WEIGHT = 0.3  # of a gradient-time residual: the part before the last gradient is only about that time
_FEW_STEPS = 3.0  # a mean over this many steps weighs half of one over very many
_STARTS = np.log(np.array([0.3, 2.0]))  # log(gamma - 1): there may be a local optimum for each kind of overlap
_OVERLAP_BOUNDS = (-5.0, 2.2)
_ITERATIONS = 25
_STRIDE = 2.0  # of one iteration in any coordinate: a factor of 7
_ENOUGH = 1e-3  # relative decrease of the loss below which an iteration is the last
_INTER_PENALTY = 1.1  # what is known of one node only counts a tenth more between nodes (Pollux)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns of the profile that can be used, and features of their shapes."""

    atomic: Array
    grad: Array
    step: Array
    alone: NDArray[np.bool_]  # K = 1
    across: NDArray[np.bool_]  # N > 1
    doublings: Array  # log2(K / 2)
    crowding: Array
    trust: Array  # square roots of the rows' weights, the best row 1
    scale: Array  # of the residuals: of steps, then of gradients
    measured: Array  # logarithms of the step times, then of the gradient times


def fit(rows: Sequence[ProfileRow]) -> ThroughputParams | None:
    """The most probable parameters of the model in `goodput.ThroughputParams`. None: not one usable row."""
    data = _columns(rows)
    if data is None:
        return None
    prior = _prior(data)
    starts = np.stack([_start(data, prior, overlap) for overlap in _STARTS])
    found, losses = _minimise(data, starts, prior, _STEP_ERROR)
    best = found[int(np.argmin(losses))]
    error = _error(data, best)
    if error < 0.5 * _STEP_ERROR:
        best = _minimise(data, best[None], prior, error)[0][0]
    return _optimistic(best, data)


def _columns(rows: Sequence[ProfileRow]) -> _Rows | None:
    usable = [
        row
        for row in rows
        if row.weight > 0 and row.atomic_batch > 0 and 0 < row.step_time < np.inf and 1 <= row.nodes <= row.replicas
    ]
    if not usable:
        return None
    table = np.array([(r.nodes, r.replicas, r.atomic_batch, r.grad_time, r.step_time, r.weight) for r in usable])
    nodes, replicas, atomic, grad, step, weight = table.T
    # Alone there is nothing to wait for: the step is the gradient. With others, a missing gradient time says nothing.
    known = (grad > 0) & np.isfinite(grad)
    grad = np.where(known, np.minimum(grad, step), step)
    trust = weight / (weight + _FEW_STEPS)
    trust = np.sqrt(trust / trust.max())
    return _Rows(
        atomic,
        grad,
        step,
        replicas <= 1,
        nodes > 1,
        np.log2(np.maximum(replicas, 2.0)) - 1.0,
        crowding(nodes, replicas),
        trust,
        np.concatenate([trust, trust * _GRAD_WEIGHT * (known | (replicas <= 1))]),
        np.log(np.concatenate([step, grad])),
    )


def _prior(data: _Rows) -> Array:
    """Means: half of the usual gradient time is constant, and the shapes are what is usual."""
    middle, grad, step = _middle(data.atomic), _middle(data.grad), _middle(data.step)
    return np.array(
        [
            np.log(grad / 2.0),
            np.log(grad / 2.0 / middle),
            np.log(0.05 * step),
            np.log(_USUAL_SLOPE_R),
            np.log(step),
            np.log(_USUAL_SLOPE_N),
            np.log(_USUAL_CROWD_N),
            0.0,
        ]
    )


def _middle(values: Array) -> float:
    """The upper median; numpy's takes as long as an iteration of the search."""
    return float(np.sort(values)[len(values) // 2])


def _start(data: _Rows, prior: Array, overlap: float) -> Array:
    """A point near the optimum for one overlap: a straight line for T_grad, medians of what is left for T_sync."""
    theta: Array = prior.copy()
    theta[_OVERLAP] = overlap
    alpha, beta = _line(data)
    theta[_ALPHA_C], theta[_BETA_C] = np.log(alpha), np.log(beta)
    compute, gamma = alpha + beta * data.atomic, 1.0 + np.exp(overlap)
    ratio = np.minimum(compute / data.step, 0.98)
    sync: Array = data.step * (1.0 - ratio**gamma) ** (1.0 / gamma)
    within = ~data.alone & ~data.across
    if within.any():
        growth = 1.0 + _USUAL_SLOPE_R * data.doublings[within]
        theta[_ALPHA_R] = np.log(_middle(sync[within] / growth))
    if data.across.any():
        growth = 1.0 + _USUAL_SLOPE_N * data.doublings + _USUAL_CROWD_N * data.crowding
        theta[_ALPHA_N] = np.log(_middle((sync / growth)[data.across]))
    return theta


def _line(data: _Rows) -> tuple[float, float]:
    """Non-negative weighted least squares of T_grad = alpha + beta m, relative errors; one m: half and half."""
    trust = data.scale[len(data.grad) :]
    weight = ((trust if trust.any() else data.trust) / data.grad) ** 2
    weight /= weight.sum()
    centre = float(weight @ data.atomic)
    mean = float(weight @ data.grad)
    spread = float(weight @ (data.atomic - centre) ** 2)
    if spread <= 1e-12 * centre**2:
        return mean / 2.0, mean / 2.0 / centre
    beta = float(weight @ ((data.atomic - centre) * data.grad)) / spread
    # Strictly inside the quadrant, since the search goes on in logarithms.
    beta = min(max(beta, 1e-3 * mean / centre), mean / centre)
    return max(mean - beta * centre, 1e-3 * mean), beta


def _error(data: _Rows, theta: Array) -> float:
    """Relative error of the step model as these rows show it, where they are many enough to show it at all."""
    spare = len(data.step) - len(theta)
    if spare < _SPARE_ROWS:
        return _STEP_ERROR
    residual = _residuals(data, theta[None])[0][0, : len(data.step)] * data.trust
    typical = 1.5 * _middle(np.abs(residual)) * np.sqrt(len(residual) / spare)
    return float(np.clip(typical, _LEAST_ERROR, _STEP_ERROR))


def _minimise(data: _Rows, theta: Array, prior: Array, error: float) -> tuple[Array, Array]:
    """Levenberg-Marquardt from several starts at once (starts x 8); returns the points and their losses."""
    damping = np.full(len(theta), 1e-3)
    loss, curvature, slope = _expand(data, theta, prior, error)
    diagonal = np.arange(theta.shape[1])
    for _ in range(_ITERATIONS):
        damped = curvature.copy()
        damped[:, diagonal, diagonal] *= 1.0 + damping[:, None]
        move = np.linalg.solve(damped, slope[:, :, None])[:, :, 0]
        trial = theta - np.minimum(np.maximum(move, -_STRIDE), _STRIDE)
        trial[:, _OVERLAP] = np.minimum(np.maximum(trial[:, _OVERLAP], _OVERLAP_BOUNDS[0]), _OVERLAP_BOUNDS[1])
        trial_loss, trial_curvature, trial_slope = _expand(data, trial, prior, error)
        better = trial_loss < loss
        settled = bool(np.all(~better | (loss - trial_loss < _ENOUGH * loss)))
        finished = settled and bool(better.any() or damping.min() > 1)
        theta = np.where(better[:, None], trial, theta)
        curvature = np.where(better[:, None, None], trial_curvature, curvature)
        slope = np.where(better[:, None], trial_slope, slope)
        loss = np.where(better, trial_loss, loss)
        damping = np.where(better, damping * 0.2, damping * 8.0)
        if finished:
            break
    return theta, loss


def _expand(data: _Rows, theta: Array, prior: Array, error: float) -> tuple[Array, Array, Array]:
    """Loss (soft L1 of the residuals + squares of the priors), Gauss-Newton curvature and gradient at each point."""
    residual, jacobian = _residuals(data, theta)
    scale = data.scale / error
    residual = residual * scale
    root = np.sqrt(1.0 + residual**2)
    halfway = np.sqrt(root)
    weighted = jacobian * (scale / halfway)[:, :, None]
    tight = residual / halfway
    away = (theta - prior) / _SPREAD
    loss = 2.0 * (root - 1.0).sum(axis=1) + (away**2).sum(axis=1)
    transposed = weighted.transpose(0, 2, 1)
    curvature = transposed @ weighted + _STIFFNESS
    slope = (transposed @ tight[:, :, None])[:, :, 0] + away / _SPREAD
    return loss, curvature, slope


def _residuals(data: _Rows, theta: Array) -> tuple[Array, Array]:
    """log(predicted / measured) of step times, then of gradient times (starts x 2n), and its Jacobian (x 8)."""
    value = np.exp(theta)[:, :, None]
    gamma = 1.0 + value[:, _OVERLAP]
    slope = value[:, _BETA_C] * data.atomic
    compute = value[:, _ALPHA_C] + slope
    growth = np.where(data.across, value[:, _SLOPE_N], value[:, _SLOPE_R]) * data.doublings
    crowd = value[:, _CROWD_N] * data.crowding
    whole = 1.0 + growth + crowd
    log_compute = np.log(compute)
    log_sync = np.where(data.across, theta[:, _ALPHA_N, None], theta[:, _ALPHA_R, None]) + np.log(whole)
    log_ratio = np.where(data.alone, -700.0, log_sync - log_compute)
    # In logarithms: step = compute (1 + ratio^gamma)^(1/gamma); `share` is the part of it that synchronising has.
    power = gamma * log_ratio
    softplus = np.logaddexp(0.0, power)
    share = np.exp(power - softplus)
    n = len(data.atomic)
    residual = np.concatenate([log_compute + softplus / gamma, log_compute], axis=1) - data.measured
    jacobian = np.zeros((len(theta), 2 * n, 8))
    part = slope / compute
    rest, across = 1.0 - share, share * data.across
    within, grown = share - across, share * (growth / whole)
    jacobian[:, n:, _BETA_C] = part
    jacobian[:, n:, _ALPHA_C] = 1.0 - part
    jacobian[:, :n, _BETA_C] = rest * part
    jacobian[:, :n, _ALPHA_C] = rest - rest * part
    jacobian[:, :n, _ALPHA_R] = within
    jacobian[:, :n, _SLOPE_R] = grown * ~data.across
    jacobian[:, :n, _ALPHA_N] = across
    jacobian[:, :n, _SLOPE_N] = grown * data.across
    jacobian[:, :n, _CROWD_N] = across * (crowd / whole)
    jacobian[:, :n, _OVERLAP] = (share * log_ratio - softplus / gamma) * (gamma - 1.0) / gamma
    return residual, jacobian


def _optimistic(theta: Array, data: _Rows) -> ThroughputParams:
    """The parameters of a point, with what no row could tell set so that the next shape is worth a try."""
    value = [float(v) for v in np.exp(theta)]
    alpha_c, beta_c, gamma = value[_ALPHA_C], value[_BETA_C], 1.0 + value[_OVERLAP]
    alpha_r = beta_r = alpha_n = beta_n = delta_n = 0.0
    if bool((~data.alone & ~data.across).any()):
        alpha_r, beta_r = value[_ALPHA_R], value[_ALPHA_R] * value[_SLOPE_R]
    if bool(data.across.any()):
        alpha_n = value[_ALPHA_N]
        beta_n, delta_n = alpha_n * value[_SLOPE_N], alpha_n * value[_CROWD_N]
    else:
        alpha_n, beta_n = _INTER_PENALTY * alpha_r, _INTER_PENALTY * beta_r
    return ThroughputParams(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma, delta_n)
