"""The fit finds what it is shown, stays sane with little or bad data, and is optimistic about the unseen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.fitting import fit_many
from gpq.core.model.profile import ProfileRow
from tests.support.examples import examples

SHAPES = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (3, 6), (4, 4), (4, 16), (8, 8), (8, 32)]
UNSEEN = [(1, 6), (2, 6), (6, 12), (12, 48), (16, 64)]
TRUE = [
    gp.ThroughputParams(0.03, 7e-4, 0.06, 0.012, 0.004, 0.001, 2.0, 0.015),
    gp.ThroughputParams(0.25, 5e-2, 1.10, 0.150, 0.050, 0.020, 1.3, 0.300),
    gp.ThroughputParams(0.007, 1e-6, 0.015, 0.002, 0.003, 0.001, 1.1, 0.002),
    gp.ThroughputParams(0.05, 4e-3, 0.20, 0.030, 0.002, 0.001, 4.0, 0.050),
]


def fit(rows: Sequence[ProfileRow]) -> gp.ThroughputParams | None:
    return fit_many([rows])[0]


def rows_of(
    params: gp.ThroughputParams,
    shapes: list[tuple[int, int]],
    batches: list[int],
    error: float = 0.0,
    seed: int = 0,
    weight: float = 100.0,
) -> list[ProfileRow]:
    """Rows as the model makes them, each time changed by a log-normal factor."""
    rng = np.random.default_rng(seed)
    return [
        ProfileRow(
            nodes,
            replicas,
            m,
            float(gp.grad_time(params, m) * np.exp(error * rng.standard_normal())),
            float(gp.step_time(params, nodes, replicas, m) * np.exp(error * rng.standard_normal())),
            weight,
        )
        for nodes, replicas in shapes
        for m in batches
    ]


def relative_errors(fitted: gp.ThroughputParams | None, rows: list[ProfileRow]) -> gp.Array:
    assert fitted is not None
    predicted = [float(gp.step_time(fitted, r.nodes, r.replicas, r.atomic_batch)) for r in rows]
    errors: gp.Array = np.abs(np.array(predicted) / np.array([r.step_time for r in rows]) - 1.0)
    return errors


@pytest.mark.parametrize("params", TRUE)
def test_noise_free_rows_are_recovered(params: gp.ThroughputParams) -> None:
    fitted = fit(rows_of(params, SHAPES, [8, 32, 128]))
    assert relative_errors(fitted, rows_of(params, SHAPES, [8, 16, 64, 128])).max() < 0.01
    assert relative_errors(fitted, rows_of(params, UNSEEN, [8, 50, 200])).max() < 0.02


@pytest.mark.parametrize("params", TRUE)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_eight_noisy_rows_predict_shapes_four_times_larger(params: gp.ThroughputParams, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(1, 1), (1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16), (8, 8)]
    rows = [rows_of(params, [shape], [int(rng.choice([8, 16, 32, 64, 128]))], 0.05, seed + 10 * i)[0]
            for i, shape in enumerate(shapes)]  # fmt: skip
    assert np.median(relative_errors(fit(rows), rows_of(params, UNSEEN + SHAPES, [8, 32, 128]))) < 0.10


@pytest.mark.parametrize("params", TRUE)
def test_a_gross_outlier_moves_the_prediction_little(params: gp.ThroughputParams) -> None:
    rows = rows_of(params, SHAPES, [8, 64], 0.02)
    bad = [*rows[:9], *(ProfileRow(1, 4, 8, rows[9].grad_time * 10, rows[9].step_time * 10, 100.0),), *rows[10:]]
    assert np.median(relative_errors(fit(bad), rows_of(params, SHAPES, [8, 64]))) < 0.04


def test_a_row_of_many_steps_outweighs_one_of_a_single_step() -> None:
    params = TRUE[0]
    good = rows_of(params, [(1, 1), (1, 2), (1, 4)], [8, 64], weight=1000.0)
    bad = [ProfileRow(r.nodes, r.replicas, r.atomic_batch, r.grad_time * 1.5, r.step_time * 1.5, 1.0) for r in good]
    even = [ProfileRow(r.nodes, r.replicas, r.atomic_batch, r.grad_time, r.step_time, 1000.0) for r in bad]
    assert relative_errors(fit(good + bad), good).max() < 0.12
    assert relative_errors(fit(good + even), good).min() > 0.12


def test_a_job_seen_on_one_gpu_is_expected_to_scale_perfectly() -> None:
    fitted = fit(rows_of(TRUE[1], [(1, 1)], [4, 8]))
    assert fitted is not None
    for nodes, replicas in ((1, 2), (1, 8), (2, 2), (4, 16)):
        one = gp.throughput(fitted, 1, 1, 8, 0)
        assert gp.throughput(fitted, nodes, replicas, 8, 0) == pytest.approx(replicas * one)


def test_with_one_micro_batch_half_of_its_time_is_constant() -> None:
    fitted = fit([ProfileRow(1, 1, 32, 0.4, 0.4, 50.0)])
    assert fitted is not None
    assert fitted.alpha_c == pytest.approx(0.2, rel=1e-3)
    assert fitted.beta_c * 32 == pytest.approx(0.2, rel=1e-3)


def test_between_nodes_is_expected_a_tenth_worse_than_within_until_it_is_measured() -> None:
    fitted = fit(rows_of(TRUE[0], [(1, 1), (1, 2), (1, 4)], [8, 64]))
    assert fitted is not None
    assert fitted.alpha_n == pytest.approx(1.1 * fitted.alpha_r)
    assert fitted.beta_n == pytest.approx(1.1 * fitted.beta_r)
    assert fitted.alpha_r > 0


def test_measurements_only_across_servers_add_no_cost_within_one() -> None:
    fitted = fit(rows_of(TRUE[0], [(1, 1), (2, 2), (2, 4)], [8, 64]))
    assert fitted is not None
    assert (fitted.alpha_r, fitted.beta_r) == (0.0, 0.0)
    assert fitted.alpha_n > 0


def test_impossible_rows_are_ignored_and_no_usable_row_gives_no_fit() -> None:
    nothing = [
        ProfileRow(1, 1, 8, 0.1, 0.0, 10.0),
        ProfileRow(1, 1, 8, 0.1, float("nan"), 10.0),
        ProfileRow(1, 1, 8, 0.1, float("inf"), 10.0),
        ProfileRow(1, 1, 0, 0.1, 0.1, 10.0),
        ProfileRow(1, 1, 8, 0.1, 0.1, 0.0),
        ProfileRow(3, 2, 8, 0.1, 0.1, 10.0),
    ]
    assert fit([]) is None
    assert fit(nothing) is None
    good = rows_of(TRUE[0], [(1, 1), (1, 2)], [8, 64])
    assert fit(good + nothing) == fit(good)


def test_a_missing_gradient_time_falls_back_on_the_step_time() -> None:
    fitted = fit([ProfileRow(1, 1, 8, 0.0, 0.1, 10.0), ProfileRow(1, 1, 32, float("nan"), 0.2, 10.0)])
    assert fitted is not None
    assert float(gp.step_time(fitted, 1, 1, 8)) == pytest.approx(0.1, rel=0.02)
    assert float(gp.step_time(fitted, 1, 1, 32)) == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize("missing", [0.0, float("nan"), -1.0])
def test_gradient_times_that_are_missing_among_several_replicas_do_not_mislead(missing: float) -> None:
    rows = [
        r if r.replicas == 1 else ProfileRow(r.nodes, r.replicas, r.atomic_batch, missing, r.step_time, r.weight)
        for r in rows_of(TRUE[1], SHAPES, [8, 64], 0.02)
    ]
    assert np.median(relative_errors(fit(rows), rows_of(TRUE[1], UNSEEN, [8, 64]))) < 0.05


row = st.integers(1, 64).flatmap(
    lambda k: st.builds(
        ProfileRow,
        nodes=st.integers(1, min(k, 16)),
        replicas=st.just(k),
        atomic_batch=st.integers(1, 4096),
        grad_time=st.floats(1e-6, 1e4),
        step_time=st.floats(1e-6, 1e4),
        weight=st.floats(0.1, 1e6),
    )
)


@given(st.lists(row, min_size=1, max_size=30))
@settings(max_examples=examples(150), deadline=None)
def test_any_rows_give_finite_parameters_of_a_physical_model(rows: list[ProfileRow]) -> None:
    fitted = fit(rows)
    assert fitted is not None
    values = [getattr(fitted, name) for name in gp.ThroughputParams.__dataclass_fields__]
    assert all(np.isfinite(value) and value >= 0 for value in values)
    assert fitted.gamma >= 1
    assert fitted.alpha_c > 0 or fitted.beta_c > 0


@given(st.floats(1e-3, 1e3), st.integers(0, 100))
@settings(max_examples=examples(30), deadline=None)
def test_the_unit_of_time_does_not_matter(unit: float, seed: int) -> None:
    rows = rows_of(TRUE[0], [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 4)], [8, 64], 0.05, seed)
    scaled = [
        ProfileRow(r.nodes, r.replicas, r.atomic_batch, r.grad_time * unit, r.step_time * unit, r.weight) for r in rows
    ]
    one, other = fit(rows), fit(scaled)
    assert one is not None
    assert other is not None
    for nodes, replicas in UNSEEN:
        expected = unit * float(gp.step_time(one, nodes, replicas, 32))
        assert float(gp.step_time(other, nodes, replicas, 32)) == pytest.approx(expected, rel=0.01)


def test_profiles_fitted_together_get_the_same_parameters_as_alone() -> None:
    rng = np.random.default_rng(3)
    profiles = [
        rows_of(TRUE[int(rng.integers(len(TRUE)))], SHAPES[: int(rng.integers(1, 14))], [8, 32, 128], 0.05, seed)
        for seed in range(30)
    ]
    profiles += [rows_of(TRUE[0], SHAPES, [32], 0.001), [], rows_of(TRUE[1], [(1, 1)], [8], weight=0.0)]
    found = fit_many(profiles)
    assert found == [fit(rows) for rows in profiles]
    assert found[-2:] == [None, None]
    assert None not in found[:-2]
