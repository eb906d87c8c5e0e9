"""The dynamic programmes compared with every possible choice. Prices compared with the optimum and their own bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.policies.shared.knapsack import Answer, Item, item, solve

option = st.tuples(st.integers(0, 6), st.floats(-5, 5))
typed_option = st.tuples(st.integers(0, 4), st.floats(-5, 5), st.integers(0, 1))


def typed(options: list[tuple[int, float, int]]) -> Item:
    sizes, values, kinds = zip(*options, strict=True)
    return Item(np.array(sizes), np.array(values, dtype=np.float64), np.array(kinds))


def best_of_all(items: list[Item], capacities: tuple[int, ...]) -> float | None:
    worths = []
    for choice in product(*(range(len(each.sizes)) for each in items)):
        used = [0] * len(capacities)
        for each, position in zip(items, choice, strict=True):
            used[each.kinds[position]] += int(each.sizes[position])
        if all(taken <= room for taken, room in zip(used, capacities, strict=True)):
            worths.append(sum(float(each.values[p]) for each, p in zip(items, choice, strict=True)))
    return max(worths, default=None)


def check(items: list[Item], capacities: tuple[int, ...], answer: Answer) -> None:
    """Its own figures are right, and the choice fits."""
    chosen = [(each.sizes[p], each.values[p], each.kinds[p]) for each, p in zip(items, answer.choice, strict=True)]
    assert answer.value == pytest.approx(sum(value for _, value, _ in chosen))
    for kind, room in enumerate(capacities):
        assert sum(size for size, _, taken in chosen if taken == kind) <= room


@given(st.lists(st.lists(option, min_size=1, max_size=4), max_size=5), st.integers(0, 12))
def test_no_choice_that_fits_is_worth_more(lists: list[list[tuple[int, float]]], capacity: int) -> None:
    items = [item(options) for options in lists]
    best, answer = best_of_all(items, (capacity,)), solve(items, (capacity,), exact=True)
    assert (answer is None) == (best is None)
    if answer is not None:
        check(items, (capacity,), answer)
        assert answer.value == pytest.approx(best)
        assert answer.bound <= answer.value


@given(st.lists(st.lists(typed_option, min_size=1, max_size=4), max_size=4), st.integers(0, 7), st.integers(0, 7))
@settings(deadline=None)
def test_two_kinds_are_solved_exactly_too(lists: list[list[tuple[int, float, int]]], first: int, second: int) -> None:
    items = [typed(options) for options in lists]
    best, answer = best_of_all(items, (first, second)), solve(items, (first, second), exact=True)
    assert (answer is None) == (best is None)
    if answer is not None:
        check(items, (first, second), answer)
        assert answer.value == pytest.approx(best)


@given(st.lists(st.lists(typed_option, max_size=4), max_size=4), st.integers(0, 7), st.integers(0, 7))
@settings(deadline=None)
def test_prices_fit_and_their_bound_holds(lists: list[list[tuple[int, float, int]]], first: int, second: int) -> None:
    items = [typed([(0, 0.0, 0), *options]) for options in lists]  # "nothing" is an option, as for every job
    best, answer = best_of_all(items, (first, second)), solve(items, (first, second), exact=False)
    assert answer is not None
    assert best is not None
    check(items, (first, second), answer)
    assert answer.value <= best + 1e-9 <= answer.bound + 2e-9


def test_prices_come_close_to_the_optimum_of_many_jobs() -> None:
    rng = np.random.default_rng(5)
    sizes = [0, 1, 2, 4, 8, 16, 32]
    items = [
        item([(size, float(scale * size**power)) for size in sizes])
        for scale, power in zip(rng.uniform(0.5, 2, 200), rng.uniform(0.3, 0.95, 200), strict=True)
    ]
    exact, priced = solve(items, (512,), exact=True), solve(items, (512,), exact=False)
    assert exact is not None
    assert priced is not None
    assert exact.value * 0.999 <= priced.value <= exact.value + 1e-9
    assert priced.bound - priced.value <= 0.002 * exact.value


def test_the_first_of_equally_good_options_is_taken() -> None:
    answer = solve([item([(2, 1.0), (1, 1.0), (2, 1.0)])], (4,))
    assert answer is not None
    assert answer.choice == [0]


def test_an_empty_choice_has_an_answer_and_an_impossible_one_has_none() -> None:
    assert solve([], (3,)) == Answer([], 0.0, 0.0)
    assert solve([item([(4, 1.0)])], (3,)) is None
    assert solve([item([(4, 1.0)])], (3,), exact=False) is None
