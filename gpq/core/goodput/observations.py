"""Measured rows of many profiles as columns of equal length, and the starting point for the search
of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.goodput import crowding
from gpq.core.model.profile import ProfileRow

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# The fit uses these coordinates, all of them unbounded: log alpha_c, log beta_c, log alpha_r,
# log(beta_r / alpha_r), log alpha_n, log(beta_n / alpha_n), log(delta_n / alpha_n), log(gamma - 1)
ALPHA_C, BETA_C, ALPHA_R, SLOPE_R, ALPHA_N, SLOPE_N, CROWD_N, OVERLAP = range(8)
USUAL_SLOPE_R, USUAL_SLOPE_N, USUAL_CROWD_N = 0.3, 0.12, 0.2
# of a gradient-time residual, because the part before the last gradient is only roughly that time
GRAD_WEIGHT = 0.3
FEW_STEPS = 3.0  # a mean over this many steps weighs half as much as one over very many


@dataclass(frozen=True, slots=True)
class Rows:
    """Usable rows of many profiles (problems x rows), and features of their shapes. Shorter
    profiles end in rows without weight."""

    count: NDArray[np.int64]  # rows of each problem
    real: Mask
    atomic: Array
    grad: Array
    step: Array
    alone: Mask  # K = 1
    across: Mask  # N > 1
    doublings: Array  # log2(K / 2)
    crowding: Array
    trust: Array  # square roots of the rows' weights, the best row is 1
    scale: Array  # of the residuals: of steps, then of gradients
    measured: Array  # logarithms of the step times, then of the gradient times

    def of(self, problems: NDArray[np.intp] | Mask) -> Rows:
        """Only those problems."""
        return Rows(*(getattr(self, field.name)[problems] for field in fields(self)))


def is_usable(row: ProfileRow) -> bool:
    return (
        row.weight > 0
        and row.atomic_batch > 0
        and 0 < row.step_time < math.inf
        and 1 <= row.nodes <= row.replicas
    )


def any_row(rows: Mask) -> Mask:
    """Is it true for any row of each problem?"""
    has_row: Mask = np.logical_or.reduce(rows, axis=1)
    return has_row


def columns(profiles: Sequence[Sequence[ProfileRow]], width: int) -> Rows:
    count = np.array([len(rows) for rows in profiles])
    real = np.arange(width) < count[:, None]
    table = np.ones((6, len(profiles), width))
    table[:, real] = np.array(
        [
            (r.nodes, r.replicas, r.atomic_batch, r.grad_time, r.step_time, r.weight)
            for rows in profiles
            for r in rows
        ]
    ).T
    nodes, replicas, atomic, grad, step, weight = table
    # Alone there is nothing to wait for: the step is the gradient. With others, a missing gradient
    # time says nothing.
    has_grad = (grad > 0) & np.isfinite(grad)
    grad = np.where(has_grad, np.minimum(grad, step), step)
    trust = np.where(real, weight / (weight + FEW_STEPS), 0.0)
    trust = np.sqrt(trust / trust.max(axis=1)[:, None])
    return Rows(
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
        np.concatenate([trust, trust * GRAD_WEIGHT * (has_grad | (replicas <= 1))], axis=1),
        np.log(np.concatenate([step, grad], axis=1)),
    )


def usual(data: Rows) -> Array:
    """Means: half of the usual gradient time is constant, and the shapes have usual values."""
    typical, grad, step = (
        middle(values, data.real) for values in (data.atomic, data.grad, data.step)
    )
    means = np.zeros((len(step), 8))
    means[:, ALPHA_C] = np.log(grad / 2.0)
    means[:, BETA_C] = np.log(grad / 2.0 / typical)
    means[:, ALPHA_R] = np.log(0.05 * step)
    means[:, SLOPE_R] = np.log(USUAL_SLOPE_R)
    means[:, ALPHA_N] = np.log(step)
    means[:, SLOPE_N] = np.log(USUAL_SLOPE_N)
    means[:, CROWD_N] = np.log(USUAL_CROWD_N)
    return means


def middle(values: Array, among: Mask) -> Array:
    """The upper median of each row's values `among` its rows. 1 if there are none."""
    count = among.sum(axis=1)
    medians = np.sort(np.where(among, values, np.inf), axis=1)[
        np.arange(len(values)), count // 2 * (count > 0)
    ]
    return np.where(count > 0, medians, 1.0)


def start(data: Rows, prior: Array, overlap: Array) -> Array:
    """One point near the optimum for each problem and one overlap: a straight line for T_grad, and
    medians of the rest for T_sync."""
    theta: Array = prior.copy()
    theta[:, OVERLAP] = overlap
    alpha, beta = _line(data)
    theta[:, ALPHA_C], theta[:, BETA_C] = np.log(alpha), np.log(beta)
    compute, gamma = alpha[:, None] + beta[:, None] * data.atomic, 1.0 + np.exp(overlap)[:, None]
    ratio = np.minimum(compute / data.step, 0.98)
    sync: Array = data.step * (1.0 - ratio**gamma) ** (1.0 / gamma)
    within = data.real & ~data.alone & ~data.across
    growth = 1.0 + USUAL_SLOPE_R * data.doublings
    theta[:, ALPHA_R] = np.where(
        any_row(within), np.log(middle(sync / growth, within)), theta[:, ALPHA_R]
    )
    growth = 1.0 + USUAL_SLOPE_N * data.doublings + USUAL_CROWD_N * data.crowding
    between = np.log(middle(sync / growth, data.across))
    theta[:, ALPHA_N] = np.where(any_row(data.across), between, theta[:, ALPHA_N])
    return theta


def _line(data: Rows) -> tuple[Array, Array]:
    """Non-negative weighted least squares of T_grad = alpha + beta m, with relative errors. With
    only one m, half and half."""
    trust = data.scale[:, data.grad.shape[1] :]
    weight = (np.where(any_row(trust > 0)[:, None], trust, data.trust) / data.grad) ** 2
    weight /= weight.sum(axis=1)[:, None]
    centre = (weight * data.atomic).sum(axis=1)
    mean = (weight * data.grad).sum(axis=1)
    apart = data.atomic - centre[:, None]
    spread = (weight * apart**2).sum(axis=1)
    single = spread <= 1e-12 * centre**2
    beta = (weight * (apart * data.grad)).sum(axis=1) / np.where(single, 1.0, spread)
    # Strictly inside the quadrant, because the search continues in logarithms.
    beta = np.where(
        single,
        mean / 2.0 / centre,
        np.minimum(np.maximum(beta, 1e-3 * mean / centre), mean / centre),
    )
    return np.where(single, mean / 2.0, np.maximum(mean - beta * centre, 1e-3 * mean)), beta
