"""Reports become a profile of bounded size, which loses only detail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpq.core.model import events as facts
from gpq.core.model.profile import LossPoint, Noise, NoisePoint, Profile, ProfileRow, Progress
from gpq.core.state.job_events import apply
from gpq.core.state.learn_profile import MAX_LOSSES, refresh, with_losses
from tests.support.builders import on, running


def grown(count: int, together: int = 1) -> tuple[LossPoint, ...]:
    """A curve after `count` reports, `together` at a time. The loss is 1 / step."""
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
    for point in curve[1:]:  # half way to the previous curve
        assert point.loss == pytest.approx(10.0 / point.base_steps, rel=0.2)


def test_a_curve_does_not_depend_on_how_its_reports_were_bundled() -> None:
    assert grown(1000, together=7) == grown(1000)
    assert grown(MAX_LOSSES) == tuple(LossPoint(10.0 * step, 1.0 / step) for step in range(1, MAX_LOSSES + 1))


def test_lost_work_removes_its_losses() -> None:
    curve = with_losses(grown(10), (LossPoint(45.0, 0.3),))
    assert [point.base_steps for point in curve] == [10.0, 20.0, 30.0, 40.0, 45.0]


def test_losses_of_a_report_reach_the_profile_and_survive_a_report_without_any() -> None:
    job = running(1, on("a", 0))
    job = apply(job, facts.Profiled(5.0, job.id, 1, 100, losses=(LossPoint(1.0, 2.5),)))
    job = apply(job, facts.Profiled(6.0, job.id, 1, 200))
    assert job.profile.losses == (LossPoint(1.0, 2.5),)


def test_a_metric_that_is_not_finite_keeps_its_time_until_it_is_finite() -> None:
    job = running(1, on("a", 0))
    for at, loss in ((5.0, 1.0), (6.0, math.nan), (7.0, math.inf)):
        job = apply(job, facts.Profiled(at, job.id, 1, int(at), metrics=(("loss", loss), ("accuracy", 0.5))))
    assert job.profile.diverged == (("loss", 6.0),)
    job = apply(job, facts.Profiled(8.0, job.id, 1, 8))
    assert job.profile.diverged == (("loss", 6.0),)
    job = apply(job, facts.Profiled(9.0, job.id, 1, 9, metrics=(("loss", 2.0),)))
    assert job.profile.diverged == ()


def test_noise_scales_that_come_with_progress_make_a_curve() -> None:
    job = running(1, on("a", 0))
    for steps, noise in (
        (0.0, Noise(1.0, 8.0, 64)),
        (50.0, Noise(1.0, 9.0, 64, capped=True)),
        (90.0, Noise(0.5, 8.0, 64)),
    ):
        progress = Progress(0, 10, 0, 0, steps, 0.1)
        job = apply(job, facts.Profiled(5.0, job.id, 1, int(steps) + 1, noise=noise, progress=progress))
    job = apply(job, facts.Profiled(6.0, job.id, 1, 1000, noise=Noise(0.1, 8.0, 64)))
    assert job.profile.noise_curve == (NoisePoint(0.0, 8.0), NoisePoint(90.0, 16.0))


def test_the_first_usable_noise_scale_is_kept() -> None:
    job = running(1, on("a", 0))
    capped, first, later = Noise(1e-3, 8.0, 64, capped=True), Noise(0.5, 8.0, 640), Noise(0.1, 8.0, 6400)
    for offset, noise in enumerate((capped, first, later), 1):
        job = apply(job, facts.Profiled(5.0, job.id, 1, offset, noise=noise))
    assert (job.profile.early_noise, job.profile.noise) == (first, later)


def measured(step: float, weight: float = 100.0, replicas: int = 1) -> ProfileRow:
    return ProfileRow(1, replicas, 32, 0.9 * step, step, weight)


def followed(before: Profile, *rows: ProfileRow, noise: float = 500.0) -> Profile:
    return refresh(replace(before, rows=rows, noise=Noise(1.0, noise, 1000)))


def test_the_basis_of_the_model_follows_changes_larger_than_the_measurement_error() -> None:
    first = followed(Profile(), measured(0.1))
    assert first.basis == (measured(0.1),)
    steady = followed(first, measured(0.1015, weight=900.0))
    assert steady.basis is first.basis, "a mean that hardly moved"
    moved = followed(steady, measured(0.105))
    assert moved.basis == (measured(0.105),)
    drifted = followed(followed(first, measured(0.102)), measured(0.104))
    assert drifted.basis == (measured(0.104),), "it is compared with the basis, not with the last report"
    wider = followed(first, measured(0.1), measured(0.12, replicas=2))
    assert len(wider.basis) == 2, "a new configuration"
    young = followed(Profile(), measured(0.1, weight=5.0))
    assert followed(young, measured(0.1, weight=8.0)).basis is young.basis
    assert followed(young, measured(0.1, weight=12.0)).basis[0].weight == 12.0, "a weight that tells more"


def test_the_noise_scale_follows_in_steps_too() -> None:
    first = followed(Profile(), measured(0.1))
    assert followed(first, measured(0.1), noise=515.0).noise_basis is first.noise_basis
    after = followed(first, measured(0.1), noise=600.0).noise_basis
    assert after is not None
    assert after.var == 600.0
