"""The cheapest assignment, compared with every possible assignment."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.lab.policies.sia import GAP, Option, cheapest
from tests.support.examples import examples

Rows = list[list[Option]]


def cost(rows: Rows, idle: list[float], picked: list[int | None]) -> float:
    return sum(bound if at is None else row[at].cost for row, at, bound in zip(rows, picked, idle, strict=True))


def fits(rows: Rows, capacity: dict[str, int], picked: list[int | None]) -> bool:
    used = dict.fromkeys(capacity, 0)
    for row, at in zip(rows, picked, strict=True):
        if at is not None:
            used[row[at].gpu_type] += row[at].size
    return all(used[name] <= capacity[name] for name in capacity)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Rows, dict[str, int]]:
    types = ["a", "b", "c"][: draw(st.integers(1, 3))]
    capacity = {name: draw(st.integers(0, 6)) for name in types}
    price = st.integers(1, 150).map(lambda cents: cents / 100)
    option = st.builds(Option, st.sampled_from(types), st.sampled_from([1, 2, 4]), price)
    return draw(st.lists(st.lists(option, max_size=4), min_size=1, max_size=4)), capacity


@given(problems())
@settings(max_examples=examples(80), deadline=None)
def test_no_other_assignment_is_cheaper(problem: tuple[Rows, dict[str, int]]) -> None:
    rows, capacity = problem
    idle = [1.1 + 0.1 * j for j in range(len(rows))]
    every = product(*[[None, *range(len(row))] for row in rows])
    best = min(cost(rows, idle, list(picked)) for picked in every if fits(rows, capacity, list(picked)))
    found = cheapest(rows, idle, capacity)
    assert fits(rows, capacity, found)
    assert best - 1e-9 <= cost(rows, idle, found) <= best + GAP * (1.0 + abs(best - sum(idle)))
    assert found == cheapest(rows, idle, capacity)


def test_two_jobs_take_the_types_that_cost_least_together() -> None:
    rows = [[Option("a", 1, 0.5), Option("b", 1, 0.9)], [Option("a", 1, 0.6), Option("b", 1, 0.7)]]
    assert cheapest(rows, [1.1, 1.1], {"a": 1, "b": 1}) == [0, 1]
    assert cheapest(rows, [1.1, 1.1], {"a": 2, "b": 1}) == [0, 0]
    assert cheapest(rows, [1.1, 1.1], {"a": 1, "b": 0}) == [0, None]
    assert cheapest(rows, [0.4, 1.1], {"a": 2, "b": 0}) == [None, 0], "no option is taken that costs more than none"


def test_an_empty_choice_has_an_answer() -> None:
    assert cheapest([], [], {}) == []
    assert cheapest([[]], [1.0], {"a": 4}) == [None]
