"""Profile -> throughput parameters: a robust, weighted maximum a posteriori fit in log time, in milliseconds.

Residuals are logarithms of predicted over measured times, so that a percent counts the same for short and long steps.
Priors keep what few rows cannot tell near what is usual, and fade as rows come in. What no row can tell is optimistic
(as Pollux): a program seen on one GPU is taken to scale perfectly, until it is seen on two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput import ThroughputParams, crowding
from gpq.core.models import ProfileRow

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

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
_LEAST_WIDTH = 16  # rows that profiles are made up to, else to the next power of two
_STRIDE = 2.0  # of one iteration in any coordinate: a factor of 7
_ENOUGH = 1e-3  # relative decrease of the loss below which an iteration is the last
_INTER_PENALTY = 1.1  # what is known of one node only counts a tenth more between nodes (Pollux)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Usable rows of many profiles (problems x rows), and features of their shapes. Shorter profiles end in rows of no
    weight."""

    count: NDArray[np.int64]  # rows of each problem
    real: Mask
    atomic: Array
    grad: Array
    step: Array
    alone: Mask  # K = 1
    across: Mask  # N > 1
    doublings: Array  # log2(K / 2)
    crowding: Array
    trust: Array  # square roots of the rows' weights, the best row 1
    scale: Array  # of the residuals: of steps, then of gradients
    measured: Array  # logarithms of the step times, then of the gradient times

    def of(self, problems: NDArray[np.intp] | Mask) -> _Rows:
        """Only those problems."""
        return _Rows(*(getattr(self, each.name)[problems] for each in fields(self)))


def fit(rows: Sequence[ProfileRow]) -> ThroughputParams | None:
    """The most probable parameters of the model in `goodput.ThroughputParams`. None: not one usable row."""
    return fit_many([rows])[0]


def fit_many(profiles: Sequence[Sequence[ProfileRow]]) -> list[ThroughputParams | None]:
    """`fit` of each profile, to the last bit what it is alone: profiles of about as many rows are searched side by side,
    and what is done for one does not depend on its neighbours."""
    found: list[ThroughputParams | None] = [None] * len(profiles)
    alike: dict[int, list[tuple[int, list[ProfileRow]]]] = {}
    for number, rows in enumerate(profiles):
        usable = [row for row in rows if _is_usable(row)]
        if usable:
            width = max(_LEAST_WIDTH, 1 << (len(usable) - 1).bit_length())
            alike.setdefault(width, []).append((number, usable))
    for width, group in alike.items():
        answers = _fit_alike([usable for _, usable in group], width)
        for (number, _), params in zip(group, answers, strict=True):
            found[number] = params
    return found


def _is_usable(row: ProfileRow) -> bool:
    return row.weight > 0 and row.atomic_batch > 0 and 0 < row.step_time < math.inf and 1 <= row.nodes <= row.replicas


def _fit_alike(profiles: Sequence[Sequence[ProfileRow]], width: int) -> list[ThroughputParams]:
    data = _columns(profiles, width)
    prior = _prior(data)
    many = len(_STARTS)
    twice, prior_twice = data.of(np.tile(np.arange(len(profiles)), many)), np.tile(prior, (many, 1))
    start = _start(twice, prior_twice, np.repeat(_STARTS, len(profiles)))
    theta, losses = _minimise(twice, start, prior_twice, np.full(len(start), _STEP_ERROR), many)
    losses = losses.reshape(many, -1)
    best = theta.reshape(many, len(profiles), -1)[np.argmin(losses, axis=0), np.arange(len(profiles))]
    error = _error(data, best)
    sure = np.flatnonzero(error < 0.5 * _STEP_ERROR)
    if len(sure):
        best[sure] = _minimise(data.of(sure), best[sure], prior[sure], error[sure], 1)[0]
    within = (data.real & ~data.alone & ~data.across).any(axis=1).tolist()
    across = data.across.any(axis=1).tolist()
    return [_optimistic(*each) for each in zip(np.exp(best).tolist(), within, across, strict=True)]


def _columns(profiles: Sequence[Sequence[ProfileRow]], width: int) -> _Rows:
    count = np.array([len(rows) for rows in profiles])
    real = np.arange(width) < count[:, None]
    table = np.ones((6, len(profiles), width))
    table[:, real] = np.array(
        [(r.nodes, r.replicas, r.atomic_batch, r.grad_time, r.step_time, r.weight) for rows in profiles for r in rows]
    ).T
    nodes, replicas, atomic, grad, step, weight = table
    # Alone there is nothing to wait for: the step is the gradient. With others, a missing gradient time says nothing.
    known = (grad > 0) & np.isfinite(grad)
    grad = np.where(known, np.minimum(grad, step), step)
    trust = np.where(real, weight / (weight + _FEW_STEPS), 0.0)
    trust = np.sqrt(trust / trust.max(axis=1)[:, None])
    return _Rows(
        count,
        real,
        atomic,
        grad,
        step,
        replicas <= 1,
        nodes > 1,
        np.log2(np.maximum(replicas, 2.0)) - 1.0,
        crowding(nodes, replicas),
        trust,
        np.concatenate([trust, trust * _GRAD_WEIGHT * (known | (replicas <= 1))], axis=1),
        np.log(np.concatenate([step, grad], axis=1)),
    )


def _prior(data: _Rows) -> Array:
    """Means: half of the usual gradient time is constant, and the shapes are what is usual."""
    middle, grad, step = (_middle(values, data.real) for values in (data.atomic, data.grad, data.step))
    found = np.zeros((len(step), 8))
    found[:, _ALPHA_C] = np.log(grad / 2.0)
    found[:, _BETA_C] = np.log(grad / 2.0 / middle)
    found[:, _ALPHA_R] = np.log(0.05 * step)
    found[:, _SLOPE_R] = np.log(_USUAL_SLOPE_R)
    found[:, _ALPHA_N] = np.log(step)
    found[:, _SLOPE_N] = np.log(_USUAL_SLOPE_N)
    found[:, _CROWD_N] = np.log(_USUAL_CROWD_N)
    return found


def _middle(values: Array, among: Mask) -> Array:
    """The upper median of each row's values `among` its rows; 1 where there are none."""
    count = among.sum(axis=1)
    found = np.sort(np.where(among, values, np.inf), axis=1)[np.arange(len(values)), count // 2 * (count > 0)]
    return np.where(count > 0, found, 1.0)


def _start(data: _Rows, prior: Array, overlap: Array) -> Array:
    """A point near the optimum for one overlap a problem: a straight line for T_grad, medians of what is left for T_sync."""
    theta: Array = prior.copy()
    theta[:, _OVERLAP] = overlap
    alpha, beta = _line(data)
    theta[:, _ALPHA_C], theta[:, _BETA_C] = np.log(alpha), np.log(beta)
    compute, gamma = alpha[:, None] + beta[:, None] * data.atomic, 1.0 + np.exp(overlap)[:, None]
    ratio = np.minimum(compute / data.step, 0.98)
    sync: Array = data.step * (1.0 - ratio**gamma) ** (1.0 / gamma)
    within = data.real & ~data.alone & ~data.across
    growth = 1.0 + _USUAL_SLOPE_R * data.doublings
    theta[:, _ALPHA_R] = np.where(within.any(axis=1), np.log(_middle(sync / growth, within)), theta[:, _ALPHA_R])
    growth = 1.0 + _USUAL_SLOPE_N * data.doublings + _USUAL_CROWD_N * data.crowding
    middle = np.log(_middle(sync / growth, data.across))
    theta[:, _ALPHA_N] = np.where(data.across.any(axis=1), middle, theta[:, _ALPHA_N])
    return theta


def _line(data: _Rows) -> tuple[Array, Array]:
    """Non-negative weighted least squares of T_grad = alpha + beta m, relative errors; one m: half and half."""
    trust = data.scale[:, data.grad.shape[1] :]
    weight = (np.where(trust.any(axis=1)[:, None], trust, data.trust) / data.grad) ** 2
    weight /= weight.sum(axis=1)[:, None]
    centre = (weight * data.atomic).sum(axis=1)
    mean = (weight * data.grad).sum(axis=1)
    apart = data.atomic - centre[:, None]
    spread = (weight * apart**2).sum(axis=1)
    one = spread <= 1e-12 * centre**2
    beta = (weight * (apart * data.grad)).sum(axis=1) / np.where(one, 1.0, spread)
    # Strictly inside the quadrant, since the search goes on in logarithms.
    beta = np.where(one, mean / 2.0 / centre, np.minimum(np.maximum(beta, 1e-3 * mean / centre), mean / centre))
    return np.where(one, mean / 2.0, np.maximum(mean - beta * centre, 1e-3 * mean)), beta


def _error(data: _Rows, theta: Array) -> Array:
    """Relative error of the step model as these rows show it, where they are many enough to show it at all."""
    spare = data.count - theta.shape[1]
    enough = spare >= _SPARE_ROWS
    found = np.full(len(theta), _STEP_ERROR)
    if enough.any():
        few = data.of(enough)
        residual = np.abs(_residuals(few, theta[enough])[0][:, : few.step.shape[1]] * few.trust)
        typical = 1.5 * _middle(residual, few.real) * np.sqrt(few.count / spare[enough])
        found[enough] = np.minimum(np.maximum(typical, _LEAST_ERROR), _STEP_ERROR)
    return found


def _minimise(data: _Rows, theta: Array, prior: Array, error: Array, starts: int) -> tuple[Array, Array]:
    """Levenberg-Marquardt (problems x 8); returns the points and their losses. Problems come in `starts` equal blocks, one
    for each start: one is searched until all of its starts have settled, and then stays as it is."""
    points, losses = theta.copy(), np.zeros(len(theta))
    where = np.arange(len(theta))  # in the answer: when half have settled, only the others are worked on
    open_ = np.ones(len(theta), dtype=bool)
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
        better = (trial_loss < loss) & open_
        small = ~better | (loss - trial_loss < _ENOUGH * loss)
        by_start = np.stack([small, better, damping > 1]).reshape(3, starts, -1)
        settled = by_start[0].all(axis=0) & (by_start[1].any(axis=0) | by_start[2].all(axis=0))
        theta = np.where(better[:, None], trial, theta)
        curvature = np.where(better[:, None, None], trial_curvature, curvature)
        slope = np.where(better[:, None], trial_slope, slope)
        loss = np.where(better, trial_loss, loss)
        damping = np.where(better, damping * 0.2, damping * 8.0)
        if settled.any():
            open_ &= ~np.tile(settled, starts)
            if not open_.any():
                break
            if 2 * np.count_nonzero(open_) <= len(open_):
                points[where], losses[where] = theta, loss
                data, prior, error, where, theta = (
                    data.of(open_),
                    prior[open_],
                    error[open_],
                    where[open_],
                    theta[open_],
                )
                loss, curvature, slope, damping = loss[open_], curvature[open_], slope[open_], damping[open_]
                open_ = np.ones(len(theta), dtype=bool)
    points[where], losses[where] = theta, loss
    return points, losses


def _expand(data: _Rows, theta: Array, prior: Array, error: Array) -> tuple[Array, Array, Array]:
    """Loss (soft L1 of the residuals + squares of the priors), Gauss-Newton curvature and gradient at each point."""
    residual, jacobian = _residuals(data, theta)
    scale = data.scale / error[:, None]
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
    """log(predicted / measured) of step times, then of gradient times (problems x 2n), and its Jacobian (x 8)."""
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
    n = data.atomic.shape[1]
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


def _optimistic(value: Sequence[float], within: bool, across: bool) -> ThroughputParams:
    """The parameters of a point (their exponentials), with what no row could tell set so that the next shape is worth a
    try."""
    alpha_c, beta_c, gamma = value[_ALPHA_C], value[_BETA_C], 1.0 + value[_OVERLAP]
    alpha_r = beta_r = delta_n = 0.0
    if within:
        alpha_r, beta_r = value[_ALPHA_R], value[_ALPHA_R] * value[_SLOPE_R]
    if across:
        alpha_n = value[_ALPHA_N]
        beta_n, delta_n = alpha_n * value[_SLOPE_N], alpha_n * value[_CROWD_N]
    else:
        alpha_n, beta_n = _INTER_PENALTY * alpha_r, _INTER_PENALTY * beta_r
    return ThroughputParams(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma, delta_n)
