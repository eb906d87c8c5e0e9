"""The best batch: no candidate is better, the limits hold, and other questions change nothing."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.batches import (
    BatchChoice,
    BatchLimits,
    Question,
    candidate_batches,
    columns_of,
    goodput_table,
    goodput_tables,
    limits_of,
)
from gpq.core.model.profile import Declared
from tests.core.goodput.test_goodput import PARAMS, drawn_limits, params_of, shapes, stats_of
from tests.support.examples import examples


def best_batch(
    params: gp.ThroughputParams, stats: gp.GradientStats | None, limits: BatchLimits, nodes: int, replicas: int
) -> BatchChoice:
    return goodput_table(params, stats, limits, [nodes], [replicas]).choice(0)


@st.composite
def questions_of(draw: st.DrawFn) -> Question:
    replicas = np.array(draw(st.lists(st.integers(1, 40), min_size=1, max_size=30)), dtype=np.int64)
    factor = draw(st.floats(0.5, 2.0))
    nodes = -(-replicas // 4)
    return Question(
        draw(params_of), draw(stats_of), draw(drawn_limits()), nodes, replicas, np.full(len(replicas), factor)
    )


@given(st.lists(questions_of(), max_size=40))
@settings(max_examples=examples(50), deadline=None)
def test_a_question_among_many_has_the_same_answer_as_alone(questions: list[Question]) -> None:
    together = goodput_tables(questions)
    assert len(together) == len(questions)
    for question, table in zip(questions, together, strict=True):
        for column, alone in zip(columns_of(table), columns_of(goodput_tables([question])[0]), strict=True):
            assert column.tolist() == alone.tolist()


def test_predicted_times_are_multiplied_by_the_factor() -> None:
    replicas = np.array([1, 2, 4])
    plain = goodput_table(PARAMS, None, BatchLimits(128, 4096, 8, 1024), [1, 1, 1], replicas)
    slow = Question(
        PARAMS, None, BatchLimits(128, 4096, 8, 1024), np.ones(3, dtype=np.int64), replicas, np.full(3, 2.0)
    )
    assert goodput_tables([slow])[0].goodput == pytest.approx(plain.goodput / 2.0)


@given(params_of, stats_of, drawn_limits(), shapes)
@settings(max_examples=examples(200), deadline=None)
def test_the_chosen_batch_is_within_the_limits_and_no_candidate_is_better(
    params: gp.ThroughputParams, stats: gp.GradientStats | None, limits: BatchLimits, shape: tuple[int, int]
) -> None:
    nodes, replicas = shape
    choice = best_batch(params, stats, limits, nodes, replicas)
    atomic, accum, feasible = candidate_batches(limits, np.array([replicas]))
    values = gp.goodput(params, stats, limits.base, nodes, replicas, atomic, accum)[feasible]
    if not feasible.any():
        assert choice == BatchChoice(0, 0, 0, 0.0, 0.0, 0.0)
        return
    assert choice.goodput >= values.max() * (1 - 1e-12)
    assert choice.total_batch == replicas * choice.atomic_batch * (choice.accum_steps + 1)
    assert limits.base <= choice.total_batch <= limits.maximum
    assert limits.min_atomic <= choice.atomic_batch <= limits.max_atomic
    assert limits.accumulation or choice.accum_steps == 0
    assert 0 < choice.goodput <= choice.throughput * (1 + 1e-12)
    assert 0 < choice.efficiency <= 1


@given(params_of, stats_of, drawn_limits())
@settings(max_examples=examples(30), deadline=None)
def test_the_table_equals_single_answers_and_the_formulas(
    params: gp.ThroughputParams, stats: gp.GradientStats | None, limits: BatchLimits
) -> None:
    replicas = np.arange(1, 20)
    nodes = -(-replicas // 4)
    table = goodput_table(params, stats, limits, nodes, replicas)
    for i in range(len(replicas)):
        one = best_batch(params, stats, limits, int(nodes[i]), int(replicas[i]))
        # Not to the last digit: numpy computes powers in a long array differently from a short one.
        assert astuple(table.choice(i)) == pytest.approx(astuple(one), rel=1e-12)
        if one.goodput:
            direct = gp.goodput(params, stats, limits.base, nodes[i], replicas[i], one.atomic_batch, one.accum_steps)
            assert one.goodput == pytest.approx(float(direct), rel=1e-9)


def test_one_replica_accumulates_only_what_does_not_fit_at_once() -> None:
    params = gp.ThroughputParams(1.0, 1e-6, 0.0, 0.0, 0.0, 0.0, 1.0)  # a micro-batch takes a second, whatever its size
    noisy = gp.GradientStats(1e-6, 1e6)  # every batch is efficient, so the fastest is best
    choice = best_batch(params, noisy, BatchLimits(64, 512, 1, 512, True), 1, 1)
    assert (choice.atomic_batch, choice.accum_steps) == (512, 0)
    choice = best_batch(params, noisy, BatchLimits(64, 100, 1, 64, True), 1, 1)
    assert (choice.atomic_batch, choice.accum_steps) == (64, 0), "100 in two seconds is slower than 64 in one"


def test_without_statistics_the_batch_stays_at_the_base() -> None:
    choice = best_batch(PARAMS, None, BatchLimits(128, 4096, 8, 1024), 1, 4)
    assert choice.total_batch == 128


def test_rounding_up_never_exceeds_the_maximum_batch() -> None:
    greedy = gp.GradientStats(1e-9, 1e9)
    for replicas in range(1, 33):
        choice = best_batch(PARAMS, greedy, BatchLimits(100, 1000, 1, 1000), 1, replicas)
        assert 100 <= choice.total_batch <= 1000
        assert choice.goodput > 0


def test_a_fixed_batch_is_split_exactly_or_not_at_all() -> None:
    limits = BatchLimits(64, 64, 1, 24)
    assert best_batch(PARAMS, None, limits, 1, 1).total_batch == 64
    assert best_batch(PARAMS, None, limits, 1, 1).atomic_batch == 16
    assert best_batch(PARAMS, None, limits, 1, 3).goodput == 0


def test_a_shape_whose_replicas_outnumber_the_largest_batch_is_infeasible() -> None:
    assert best_batch(PARAMS, None, BatchLimits(4, 8, 1, 8), 2, 16).goodput == 0


def test_limits_follow_the_declaration_and_a_fixed_batch_has_one_size() -> None:
    declared = Declared(adaptive=True, batch_size=32, max_batch_size=256, min_atomic_batch=4, max_atomic_batch=64)
    assert limits_of(declared) == BatchLimits(32, 256, 4, 64, True)
    fixed = Declared(adaptive=False, batch_size=32, max_batch_size=256)
    assert limits_of(fixed) == BatchLimits(32, 32, 1, 32, True)
    assert limits_of(Declared(adaptive=True)) is None
