"""The loss curve: fitted to true curves and to noisy ones, and refused if there is nothing to fit."""

from __future__ import annotations

import numpy as np
import pytest

from gpq.core.model.profile import LossPoint
from gpq.lab.policies.greedy import CONVERGED, loss_curve


def points(b0: float, b1: float, b2: float, last: float = 2000.0, error: float = 0.0) -> tuple[LossPoint, ...]:
    luck = np.random.default_rng(11)
    steps = np.linspace(0.0, last, 40)
    losses = 1.0 / (b0 * steps + b1) + b2 + error * luck.standard_normal(len(steps))
    return tuple(LossPoint(float(k), float(loss)) for k, loss in zip(steps, losses, strict=True))


@pytest.mark.parametrize(("b0", "b1", "b2"), [(0.01, 0.5, 0.3), (0.001, 0.4, 0.0), (0.05, 1.0, -2.0)])
def test_it_predicts_a_curve_of_its_own_kind(b0: float, b1: float, b2: float) -> None:
    curve = loss_curve(points(b0, b1, b2))
    assert curve is not None
    for steps in (0.0, 1000.0, 4000.0):
        assert curve.loss(steps) == pytest.approx(1.0 / (b0 * steps + b1) + b2, abs=0.02 * curve.fall)


def test_noise_and_a_spike_do_not_lead_it_astray() -> None:
    seen = list(points(0.01, 0.5, 0.3, error=0.01))
    seen[20] = LossPoint(seen[20].base_steps, 50.0)
    curve = loss_curve(tuple(seen))
    assert curve is not None
    assert curve.loss(4000.0) == pytest.approx(1.0 / 40.5 + 0.3, abs=0.04)


def test_remaining_work_ends_when_an_epoch_gains_almost_nothing() -> None:
    curve = loss_curve(points(0.01, 0.5, 0.3))
    assert curve is not None
    left = curve.remaining_steps(100.0, 50.0)
    assert curve.gain(100.0 + left, 50.0) == pytest.approx(CONVERGED, rel=0.15)
    assert curve.remaining_steps(100.0 + 2 * left, 50.0) == 0.0
    assert curve.gain(0.0, 50.0) > curve.gain(500.0, 50.0) > curve.gain(500.0, 10.0) > 0


def test_a_loss_that_does_not_fall_or_has_few_points_has_no_curve() -> None:
    flat = tuple(LossPoint(float(k), 1.0) for k in range(10))
    rising = tuple(LossPoint(float(k), 1.0 + k) for k in range(10))
    assert loss_curve(()) is None
    assert loss_curve(points(0.01, 0.5, 0.3)[:3]) is None
    assert loss_curve(flat) is None
    assert loss_curve(rising) is None
