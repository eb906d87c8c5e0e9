"""The goodput model: its identities, its limits, and the agreement of table, single answer and formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.batches import BatchLimits
from gpq.core.model.profile import Noise

positive = st.floats(1e-5, 1.0)
params_of = st.builds(
    gp.ThroughputParams,
    alpha_c=positive,
    beta_c=st.floats(1e-6, 1e-2),
    alpha_n=st.floats(0.0, 1.0),
    beta_n=st.floats(0.0, 0.2),
    alpha_r=st.floats(0.0, 0.5),
    beta_r=st.floats(0.0, 0.1),
    gamma=st.floats(1.0, 10.0),
    delta_n=st.floats(0.0, 0.2),
)
stats_of = st.one_of(st.none(), st.builds(gp.GradientStats, st.floats(1e-9, 10.0), st.floats(1e-9, 1e5)))


@st.composite
def drawn_limits(draw: st.DrawFn) -> BatchLimits:
    base = draw(st.integers(1, 512))
    smallest = draw(st.integers(1, 16))
    return BatchLimits(
        base,
        base * draw(st.integers(1, 32)),
        smallest,
        draw(st.integers(smallest, 1024)),
        draw(st.booleans()),
    )


shapes = st.integers(1, 64).flatmap(lambda k: st.tuples(st.integers(1, min(k, 16)), st.just(k)))
PARAMS = gp.ThroughputParams(0.02, 0.0007, 0.06, 0.01, 0.005, 0.001, 2.0, 0.02)


def test_step_time_is_the_norm_of_computing_and_synchronising_worked_by_hand() -> None:
    params = gp.ThroughputParams(1.0, 0.5, 4.0, 1.0, 3.0, 2.0, 2.0, 6.0)
    assert gp.grad_time(params, 6) == pytest.approx(4.0)
    assert gp.sync_time(params, 1, 1) == 0.0
    assert gp.sync_time(params, 1, 2) == pytest.approx(3.0)
    assert gp.sync_time(params, 1, 8) == pytest.approx(3.0 + 2.0 * 2)
    assert gp.sync_time(params, 2, 8) == pytest.approx(4.0 + 1.0 * 2 + 6.0 * (8 / 2 - 1) / (2 - 1))
    assert gp.step_time(params, 1, 2, 6) == pytest.approx(5.0)
    assert gp.iteration_time(params, 1, 2, 6, 3) == pytest.approx(3 * 4.0 + 5.0)
    assert gp.throughput(params, 1, 2, 6, 3) == pytest.approx(2 * 6 * 4 / 17.0)


def test_efficiency_and_gain_match_the_noise_scale_formula() -> None:
    stats = gp.GradientStats(sqr=2.0, var=600.0)
    assert stats.noise_scale == 300.0
    assert gp.efficiency(stats, 100, 500) == pytest.approx(400 / 800)
    # Pollux's own form, with its var of a batch of M0.
    var0, scale = 600.0 / 100, 5.0
    assert gp.gain(stats, 100, 500) == pytest.approx((var0 + 2.0) / (var0 / scale + 2.0))


def test_a_very_noisy_gradient_makes_every_batch_efficient() -> None:
    stats = gp.GradientStats(sqr=0.0, var=1.0)
    assert stats.noise_scale == math.inf
    assert gp.efficiency(stats, 32, 32_000) == 1.0


@given(stats_of, st.integers(1, 10_000), st.integers(1, 1000))
def test_efficiency_is_between_zero_and_one_and_gain_between_one_and_the_scale(
    stats: gp.GradientStats | None, base: int, factor: int
) -> None:
    value = gp.efficiency(stats, base, base * factor)
    assert 0 < value <= 1
    assert 1 - 1e-9 <= gp.gain(stats, base, base * factor) <= factor * (1 + 1e-9)


@given(params_of, shapes, st.integers(1, 1024), st.integers(0, 8))
def test_times_are_positive_and_grow_with_the_batch_and_with_accumulation(
    params: gp.ThroughputParams, shape: tuple[int, int], atomic: int, accum: int
) -> None:
    nodes, replicas = shape
    time = gp.iteration_time(params, nodes, replicas, atomic, accum)
    assert time > 0
    assert gp.iteration_time(params, nodes, replicas, atomic + 1, accum) >= time
    assert gp.iteration_time(params, nodes, replicas, atomic, accum + 1) > time


@given(params_of, st.integers(2, 8), st.integers(2, 64))
def test_synchronising_never_gets_cheaper_with_more_replicas_on_the_same_nodes(
    params: gp.ThroughputParams, nodes: int, replicas: int
) -> None:
    assume(replicas >= nodes)
    assert gp.sync_time(params, nodes, replicas + 1) >= gp.sync_time(params, nodes, replicas) - 1e-12
    assert gp.sync_time(params, 1, replicas + 1) >= gp.sync_time(params, 1, replicas) - 1e-12


def test_statistics_count_only_when_they_are_usable() -> None:
    assert gp.stats_of(None) is None
    assert gp.stats_of(Noise(sqr=1.0, var=0.0, samples=0)) is None
    assert gp.stats_of(Noise(sqr=-1.0, var=2.0, samples=9, capped=True)) == gp.GradientStats(0.0, 2.0)
