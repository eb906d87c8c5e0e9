"""Reports become a profile of bounded size in which nothing is lost but detail."""

from __future__ import annotations

import pytest

from gpq.core import events as facts
from gpq.core.folding import apply
from gpq.core.models import LossPoint, Noise
from gpq.core.profiling import MAX_LOSSES, with_losses
from tests.builders import on, running


def grown(count: int, together: int = 1) -> tuple[LossPoint, ...]:
    """A curve after `count` reports, `together` at a time: the loss is 1 / step."""
    points = [LossPoint(10.0 * step, 1.0 / step) for step in range(1, count + 1)]
    curve: tuple[LossPoint, ...] = ()
    for begin in range(0, count, together):
        curve = with_losses(curve, tuple(points[begin : begin + together]))
    return curve


def test_a_week_of_reports_stays_small_and_keeps_its_form_and_its_mean() -> None:
    count = 20_000
    curve = grown(count)
    assert len(curve) == MAX_LOSSES
    assert sum(point.weight for point in curve) == count
    assert [point.base_steps for point in curve] == sorted(point.base_steps for point in curve)
    assert max(point.weight for point in curve) <= 4 * count / MAX_LOSSES, "no part of it is squeezed into one point"
    mean = sum(point.loss * point.weight for point in curve) / count
    assert mean == pytest.approx(sum(1.0 / step for step in range(1, count + 1)) / count, rel=1e-3)
    for point in curve[1:]:  # half way between where the curve was
        assert point.loss == pytest.approx(10.0 / point.base_steps, rel=0.2)


def test_a_curve_does_not_depend_on_how_its_reports_were_bundled() -> None:
    assert grown(1000, together=7) == grown(1000)
    assert grown(MAX_LOSSES) == tuple(LossPoint(10.0 * step, 1.0 / step) for step in range(1, MAX_LOSSES + 1))


def test_work_that_was_lost_takes_its_losses_along() -> None:
    curve = with_losses(grown(10), (LossPoint(45.0, 0.3),))
    assert [point.base_steps for point in curve] == [10.0, 20.0, 30.0, 40.0, 45.0]


def test_losses_of_a_report_reach_the_profile_and_survive_a_report_without_any() -> None:
    job = running(1, on("a", 0))
    job = apply(job, facts.Profiled(5.0, job.id, 1, 100, losses=(LossPoint(1.0, 2.5),)))
    job = apply(job, facts.Profiled(6.0, job.id, 1, 200))
    assert job.profile.losses == (LossPoint(1.0, 2.5),)


def test_the_first_noise_scale_that_is_one_is_kept() -> None:
    job = running(1, on("a", 0))
    capped, first, later = Noise(1e-3, 8.0, 64, capped=True), Noise(0.5, 8.0, 640), Noise(0.1, 8.0, 6400)
    for offset, noise in enumerate((capped, first, later), 1):
        job = apply(job, facts.Profiled(5.0, job.id, 1, offset, noise=noise))
    assert (job.profile.early_noise, job.profile.noise) == (first, later)
