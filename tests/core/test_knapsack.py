"""The dynamic programme against every choice there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.knapsack import Option, solve

option = st.tuples(st.integers(0, 6), st.floats(-5, 5))


@given(st.lists(st.lists(option, min_size=1, max_size=4), max_size=5), st.integers(0, 12))
def test_no_choice_that_fits_is_worth_more(items: list[list[Option]], capacity: int) -> None:
    worths = [
        sum(value for _, value in choice) for choice in product(*items) if sum(size for size, _ in choice) <= capacity
    ]
    picked = solve(items, capacity)
    if not worths:
        assert picked is None
        return
    assert picked is not None
    chosen = [options[index] for options, index in zip(items, picked, strict=True)]
    assert sum(size for size, _ in chosen) <= capacity
    assert sum(value for _, value in chosen) == pytest.approx(max(worths))


def test_of_equal_values_the_first_option_is_taken() -> None:
    assert solve([[(2, 1.0), (1, 1.0), (2, 1.0)]], 4) == [0]


def test_nothing_to_choose_is_an_answer_and_nothing_that_fits_is_none() -> None:
    assert solve([], 3) == []
    assert solve([[(4, 1.0)]], 3) is None
