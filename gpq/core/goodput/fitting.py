"""Profile -> throughput parameters: a robust, weighted maximum a posteriori fit in log time, in
milliseconds.

Residuals are logarithms of predicted over measured times, so a percent counts the same for short
and long steps. Where a few rows cannot determine a parameter, priors keep it near usual values. The
priors fade as rows come in. Unknown parameters are optimistic, as in Pollux: a program seen on one
GPU counts as scaling perfectly until it is seen on two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.goodput import ThroughputParams
from gpq.core.goodput.observations import (
    ALPHA_C,
    ALPHA_N,
    ALPHA_R,
    BETA_C,
    CROWD_N,
    OVERLAP,
    SLOPE_N,
    SLOPE_R,
    Rows,
    any_row,
    columns,
    is_usable,
    middle,
    start,
    usual,
)
from gpq.core.model.profile import ProfileRow

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Standard deviations of the priors. The scales are almost free. A few rows cannot tell the shapes
# (growth per doubling of K, crowding, overlap) from noise.
_SPREAD = np.array([20.0, 20.0, 20.0, 1.0, 20.0, 0.7, 0.8, 0.9])
_STIFFNESS = np.diag(_SPREAD**-2.0)
_STEP_ERROR = 0.1  # relative error of the step model from which a row counts as an outlier
_LEAST_ERROR = 0.002  # the rows may lower the error to this
_SPARE_ROWS = 8  # this many rows beyond the number of parameters are needed for that
# log(gamma - 1): each kind of overlap may have a local optimum
_STARTS = np.log(np.array([0.3, 2.0]))
_OVERLAP_BOUNDS = (-5.0, 2.2)
_ITERATIONS = 25
# profiles are padded to this number of rows, larger ones to the next power of two
_LEAST_WIDTH = 16
_STRIDE = 2.0  # change of any coordinate in one iteration: a factor of 7
_ENOUGH = 1e-3  # relative decrease of the loss below which the search ends
_INTER_PENALTY = 1.1  # if only one server was measured, several cost a tenth more (Pollux)


def fit_many(profiles: Sequence[Sequence[ProfileRow]]) -> list[ThroughputParams | None]:
    """The most probable parameters (`goodput.ThroughputParams`) of the model for each profile. None
    for one without a usable row. Each result is the same to the last bit as alone: profiles with
    about as many rows are searched together, and no computation depends on the others."""
    fits: list[ThroughputParams | None] = [None] * len(profiles)
    alike: dict[int, list[tuple[int, list[ProfileRow]]]] = {}
    for number, rows in enumerate(profiles):
        usable = [row for row in rows if is_usable(row)]
        if usable:
            width = max(_LEAST_WIDTH, 1 << (len(usable) - 1).bit_length())
            alike.setdefault(width, []).append((number, usable))
    for width, group in alike.items():
        answers = _fit_alike([usable for _, usable in group], width)
        for (number, _), params in zip(group, answers, strict=True):
            fits[number] = params
    return fits


def _fit_alike(profiles: Sequence[Sequence[ProfileRow]], width: int) -> list[ThroughputParams]:
    data = columns(profiles, width)
    prior = usual(data)
    many = len(_STARTS)
    twice, prior_twice = data.of(np.tile(np.arange(len(profiles)), many)), np.tile(prior, (many, 1))
    begin = start(twice, prior_twice, np.repeat(_STARTS, len(profiles)))
    theta, losses = _minimise(twice, begin, prior_twice, np.full(len(begin), _STEP_ERROR), many)
    losses = losses.reshape(many, -1)
    best = theta.reshape(many, len(profiles), -1)[
        np.argmin(losses, axis=0), np.arange(len(profiles))
    ]
    error = _error(data, best)
    sure = np.flatnonzero(error < 0.5 * _STEP_ERROR)
    if len(sure):
        best[sure] = _minimise(data.of(sure), best[sure], prior[sure], error[sure], 1)[0]
    within, across = any_row(data.real & ~data.alone & ~data.across), any_row(data.across)
    return [
        _optimistic(point, bool(within[number]), bool(across[number]))
        for number, point in enumerate(np.exp(best).tolist())
    ]


def _error(data: Rows, theta: Array) -> Array:
    """Relative error of the step model according to these rows, if there are enough rows to show
    it."""
    spare = data.count - theta.shape[1]
    enough = spare >= _SPARE_ROWS
    errors = np.full(len(theta), _STEP_ERROR)
    if enough.any():
        few = data.of(enough)
        at = theta[enough]
        view = _look(few, at, at, np.ones_like(few.scale))
        residual = np.abs(view.residual[:, : few.step.shape[1]] * few.trust)
        typical = 1.5 * middle(residual, few.real) * np.sqrt(few.count / spare[enough])
        errors[enough] = np.minimum(np.maximum(typical, _LEAST_ERROR), _STEP_ERROR)
    return errors


def _minimise(
    data: Rows, theta: Array, prior: Array, error: Array, starts: int
) -> tuple[Array, Array]:
    """Levenberg-Marquardt (problems x 8). Returns the points and their losses. Problems come in
    `starts` equal blocks, one for each start. A problem is searched until all its starts have
    settled, and then stays as it is."""
    points, losses = theta.copy(), np.zeros(len(theta))
    # in the answer. When half have settled, the search continues with the others
    where = np.arange(len(theta))
    open_ = np.ones(len(theta), dtype=bool)
    damping = np.full(len(theta), 1e-3)
    scale = data.scale / error[:, None]
    view = _look(data, theta, prior, scale)
    loss, (curvature, slope) = view.loss, _slopes(data, view)
    for _ in range(_ITERATIONS):
        damped = curvature.copy()
        damped.reshape(len(theta), -1)[:, :: theta.shape[1] + 1] *= 1.0 + damping[:, None]
        move = np.linalg.solve(damped, slope[:, :, None])[:, :, 0]
        trial = theta - np.minimum(np.maximum(move, -_STRIDE), _STRIDE)
        trial[:, OVERLAP] = np.minimum(
            np.maximum(trial[:, OVERLAP], _OVERLAP_BOUNDS[0]), _OVERLAP_BOUNDS[1]
        )
        view = _look(data, trial, prior, scale)
        better = (view.loss < loss) & open_
        small = ~better | (loss - view.loss < _ENOUGH * loss)
        settled = _settled_problems(small, better, damping > 1.0, starts)
        damping *= np.where(better, 0.2, 8.0)
        theta = np.where(better[:, None], trial, theta)
        loss = np.where(better, view.loss, loss)
        any_settled = settled.any()
        if any_settled:
            open_ &= ~np.tile(settled, starts)
            if not open_.any():
                break
        if better.all():
            curvature, slope = _slopes(data, view)
        elif better.any():
            trial_curvature, trial_slope = _slopes(data, view)
            curvature = np.where(better[:, None, None], trial_curvature, curvature)
            slope = np.where(better[:, None], trial_slope, slope)
        if any_settled and 2 * np.count_nonzero(open_) <= len(open_):
            points[where], losses[where] = theta, loss
            data, prior, scale = data.of(open_), prior[open_], scale[open_]
            where, theta, loss, damping = where[open_], theta[open_], loss[open_], damping[open_]
            curvature, slope = curvature[open_], slope[open_]
            open_ = np.ones(len(theta), dtype=bool)
    points[where], losses[where] = theta, loss
    return points, losses


def _settled_problems(small: Mask, better: Mask, damped: Mask, starts: int) -> Mask:
    """Problems none of whose starts moved much, although one did move or all are damped too much to
    move."""
    count = len(small) // starts
    steady, moved, stuck = small[:count], better[:count], damped[:count]
    for at in range(count, len(small), count):
        block = slice(at, at + count)
        steady, moved, stuck = steady & small[block], moved | better[block], stuck & damped[block]
    return steady & (moved | stuck)


class _Seen(NamedTuple):
    """Points (problems x 8) as the rows see them: residuals log(predicted / measured) of step
    times, then of gradient times (problems x 2n), scaled. Also their loss, and the parts of their
    derivatives."""

    residual: Array
    loss: Array
    scale: Array
    halfway: Array
    away: Array
    gamma: Array
    part: Array
    log_ratio: Array
    share: Array
    overlap: Array
    grown: Array
    crowded: Array


def _look(data: Rows, theta: Array, prior: Array, scale: Array) -> _Seen:
    """Loss: soft L1 of the residuals + squares of the priors."""
    value = np.exp(theta)[:, :, None]
    gamma = 1.0 + value[:, OVERLAP]
    slope = value[:, BETA_C] * data.atomic
    compute = value[:, ALPHA_C] + slope
    growth = np.where(data.across, value[:, SLOPE_N], value[:, SLOPE_R]) * data.doublings
    crowd = value[:, CROWD_N] * data.crowding
    whole = 1.0 + growth + crowd
    log_compute = np.log(compute)
    log_sync = np.where(data.across, theta[:, ALPHA_N, None], theta[:, ALPHA_R, None]) + np.log(
        whole
    )
    log_ratio = np.where(data.alone, -700.0, log_sync - log_compute)
    # In logarithms: step = compute (1 + ratio^gamma)^(1/gamma). `share` is the part of it that
    # synchronising takes.
    power = gamma * log_ratio
    softplus = np.logaddexp(0.0, power)
    share = np.exp(power - softplus)
    overlap = softplus / gamma
    residual = np.concatenate([log_compute + overlap, log_compute], axis=1)
    residual -= data.measured
    residual *= scale
    root = np.sqrt(1.0 + residual**2)
    away = (theta - prior) / _SPREAD
    loss = 2.0 * np.add.reduce(root - 1.0, axis=1) + np.add.reduce(away**2, axis=1)
    return _Seen(
        residual, loss, scale, np.sqrt(root), away, gamma,
        slope / compute, log_ratio, share, overlap, growth / whole, crowd / whole,
    )  # fmt: skip


def _slopes(data: Rows, view: _Seen) -> tuple[Array, Array]:
    """Gauss-Newton curvature (problems x 8 x 8) and gradient (problems x 8) of the loss."""
    n = data.atomic.shape[1]
    part, share, gamma = view.part, view.share, view.gamma
    jacobian = np.zeros((len(share), 2 * n, 8))
    compute_share, across = 1.0 - share, share * data.across
    within = share - across
    jacobian[:, n:, BETA_C] = part
    jacobian[:, n:, ALPHA_C] = 1.0 - part
    jacobian[:, :n, BETA_C] = compute_share * part
    jacobian[:, :n, ALPHA_C] = compute_share - compute_share * part
    jacobian[:, :n, ALPHA_R] = within
    jacobian[:, :n, SLOPE_R] = within * view.grown
    jacobian[:, :n, ALPHA_N] = across
    jacobian[:, :n, SLOPE_N] = across * view.grown
    jacobian[:, :n, CROWD_N] = across * view.crowded
    jacobian[:, :n, OVERLAP] = (share * view.log_ratio - view.overlap) * (gamma - 1.0) / gamma
    weighted = jacobian * (view.scale / view.halfway)[:, :, None]
    transposed = weighted.transpose(0, 2, 1)
    curvature = transposed @ weighted + _STIFFNESS
    slope = (transposed @ (view.residual / view.halfway)[:, :, None])[:, :, 0] + view.away / _SPREAD
    return curvature, slope


def _optimistic(value: Sequence[float], within: bool, across: bool) -> ThroughputParams:
    """The parameters of a point (their exponentials). Parameters that no row determines get values
    that make the next shape worth a try."""
    alpha_c, beta_c, gamma = value[ALPHA_C], value[BETA_C], 1.0 + value[OVERLAP]
    alpha_r = beta_r = delta_n = 0.0
    if within:
        alpha_r, beta_r = value[ALPHA_R], value[ALPHA_R] * value[SLOPE_R]
    if across:
        alpha_n = value[ALPHA_N]
        beta_n, delta_n = alpha_n * value[SLOPE_N], alpha_n * value[CROWD_N]
    else:
        alpha_n, beta_n = _INTER_PENALTY * alpha_r, _INTER_PENALTY * beta_r
    return ThroughputParams(alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma, delta_n)
