"""The growth of a noise scale is recorded thinly, averaged over jobs, and predicted ahead."""

from __future__ import annotations

import pytest

from gpq.core.goodput.noise_curve import Curve, ahead, merge, record, scale_at
from gpq.core.model.profile import Noise, NoisePoint


def curve(*points: tuple[float, float]) -> Curve:
    return tuple(NoisePoint(steps, scale) for steps, scale in points)


def test_a_long_training_leaves_two_points_for_each_doubling_and_lost_work_none() -> None:
    found: Curve = ()
    for step in range(100_000):
        found = record(found, float(step), Noise(1.0, 5.0 + step, 100))
    assert len(found) == 33
    assert found[0] == NoisePoint(0.0, 5.0)
    assert record(found, 70.0, Noise(1.0, 9.0, 100)) is found


def test_between_points_the_scale_grows_evenly_in_logarithms_and_is_flat_beyond_the_ends() -> None:
    known = curve((1.0, 10.0), (7.0, 40.0))
    assert scale_at(known, 3.0) == pytest.approx(20.0)
    assert (scale_at(known, 0.0), scale_at(known, 1000.0)) == (10.0, 40.0)


def test_jobs_are_averaged_by_bin_and_the_newest_never_weighs_less_than_a_quarter() -> None:
    known = merge(curve((0.0, 10.0), (100.0, 50.0)), curve((0.0, 40.0), (1000.0, 90.0)))
    assert [(point.base_steps, point.scale) for point in known] == [
        (0.0, pytest.approx(20.0)), (100.0, 50.0), (1000.0, 90.0)
    ]  # fmt: skip
    for _ in range(50):
        known = merge(known, curve((0.0, 10.0)))
    assert known[0].scale == pytest.approx(10.0, rel=0.01)
    assert merge(known, curve((0.0, 160.0)))[0].scale == pytest.approx(20.0, rel=0.01)


def test_a_job_that_measured_its_own_scale_takes_only_the_growth_from_others() -> None:
    known = curve((0.0, 10.0), (1000.0, 80.0))
    coming = ahead(known, Noise(1.0, 30.0, 100), 0.0, 1000.0)
    assert coming is not None
    assert coming.var / coming.sqr == pytest.approx(240.0, rel=0.03)
    fresh = ahead(known, None, 0.0, 1000.0)
    assert fresh is not None
    assert fresh.var / fresh.sqr == pytest.approx(80.0, rel=0.03)
    assert ahead(known, None, 0.0, 1001.0) is fresh, "nearly the same is the same object, or tables would be made anew"


def test_without_known_growth_its_own_scale_stays() -> None:
    own = Noise(1.0, 30.0, 100)
    assert ahead((), own, 0.0, 10.0) is own
    assert ahead(curve((0.0, 10.0)), own, 5.0, 5.0) is own
    assert ahead(curve((0.0, 90.0), (100.0, 10.0)), own, 0.0, 100.0) is own, "it is not taken to shrink"
    assert ahead(curve((0.0, 1.0), (100.0, 10.0)), Noise(0.0, 1.0, 100), 0.0, 100.0) == Noise(0.0, 1.0, 100)
