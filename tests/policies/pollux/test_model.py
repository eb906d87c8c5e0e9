"""Pollux's own model: the fit finds the parameters behind the rows, and is optimistic about everything that they do not
show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpq.core.goodput.batches import BatchLimits
from gpq.core.goodput.goodput import GradientStats
from gpq.core.model.profile import ProfileRow
from gpq.lab.policies.pollux_model import PolluxParams, _columns, _loss_of, best_batches, fit

TRUE = PolluxParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.3, beta_n=0.003, alpha_r=0.1, beta_r=0.001, gamma=1.2)
LIMITS = BatchLimits(base=64, maximum=1024, min_atomic=8, max_atomic=128)


def times(nodes: int, replicas: int, atomic: int) -> tuple[float, float]:
    """(gradient, step) by the paper's equations 9 to 11."""
    grad = TRUE.alpha_c + TRUE.beta_c * atomic
    more = max(replicas - 2, 0)
    if replicas == 1:
        return grad, grad
    sync = TRUE.alpha_n + TRUE.beta_n * more if nodes > 1 else TRUE.alpha_r + TRUE.beta_r * more
    return grad, (grad**TRUE.gamma + sync**TRUE.gamma) ** (1 / TRUE.gamma)


def rows(*shapes: tuple[int, int], atomic: tuple[int, ...] = (16, 32, 64, 128)) -> tuple[ProfileRow, ...]:
    return tuple(ProfileRow(n, k, m, *times(n, k, m), 10.0) for n, k in shapes for m in atomic)


def test_the_fit_recovers_the_parameters_of_rows_without_noise() -> None:
    found = fit(rows((1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16)))
    assert found is not None
    assert found.alpha_c == pytest.approx(TRUE.alpha_c, rel=0.01)
    assert found.beta_c == pytest.approx(TRUE.beta_c, rel=0.01)
    for nodes, replicas, atomic in ((1, 3, 100), (2, 6, 20), (4, 12, 64)):
        grad = found.alpha_c + found.beta_c * atomic
        alpha, beta = (found.alpha_n, found.beta_n) if nodes > 1 else (found.alpha_r, found.beta_r)
        step = (grad**found.gamma + (alpha + beta * (replicas - 2)) ** found.gamma) ** (1 / found.gamma)
        assert step == pytest.approx(times(nodes, replicas, atomic)[1], rel=0.05)


def test_unseen_sizes_cost_nothing_extra_and_several_servers_a_tenth_more() -> None:
    alone = fit(rows((1, 1)))
    assert alone is not None
    assert alone.alpha_r == pytest.approx(1e-8)
    assert alone.alpha_n == pytest.approx(1.1e-8)
    pair = fit(rows((1, 1), (1, 2)))
    assert pair is not None
    assert pair.beta_r == pytest.approx(1e-8)
    assert pair.alpha_n == pytest.approx(1.1 * pair.alpha_r)
    assert pair.alpha_r > 0.01


def test_with_a_single_batch_size_half_of_the_time_is_constant() -> None:
    found = fit(rows((1, 1), atomic=(64,)))
    assert found is not None
    assert found.alpha_c == pytest.approx(times(1, 1, 64)[0] / 2)
    assert found.beta_c * 64 == pytest.approx(found.alpha_c, rel=1e-4)


def test_rows_without_gradient_times_still_count_for_steps() -> None:
    blind = tuple(replace(row, grad_time=0.0) for row in rows((1, 1), (1, 2), (1, 4)))
    found, full = fit(blind), fit(rows((1, 1), (1, 2), (1, 4)))
    assert found is not None
    assert full is not None
    assert found.alpha_r == pytest.approx(full.alpha_r, rel=0.1)
    assert fit(()) is None
    assert fit((replace(blind[0], step_time=float("inf")),)) is None


def test_the_gradient_of_the_loss_is_its_slope() -> None:
    data, _ = _columns(rows((1, 1), (1, 2), (2, 4), (2, 8)))
    assert data is not None
    loss = _loss_of(data)
    here = np.array([0.07, 0.003, 0.1, 0.01, 0.03, 0.004, 1.5])
    slope = loss(here)[1].copy()
    for at in range(7):
        step = np.zeros(7)
        step[at] = 1e-6 * here[at]
        measured = (loss(here + step)[0] - loss(here - step)[0]) / (2 * step[at])
        assert slope[at] == pytest.approx(measured, rel=1e-5)


def test_one_replica_exceeds_the_base_batch_size_only_by_accumulation() -> None:
    goodput, atomic, accum = best_batches(TRUE, GradientStats(0.0, 1.0), LIMITS, [1, 1], [1, 2])
    assert atomic[0] * (accum[0] + 1) > LIMITS.base
    assert accum[0] >= 1
    assert goodput[1] > goodput[0] > 0


def test_the_batch_is_the_best_of_the_candidates_and_grows_with_the_noise() -> None:
    quiet = best_batches(TRUE, GradientStats(1.0, 1.0), LIMITS, [2], [8])
    noisy = best_batches(TRUE, GradientStats(1.0, 1e5), LIMITS, [2], [8])
    assert 8 * quiet[1][0] * (quiet[2][0] + 1) == 64
    assert 8 * noisy[1][0] * (noisy[2][0] + 1) > 512
    assert noisy[0][0] > quiet[0][0]
