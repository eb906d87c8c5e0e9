"""Fronts and distances of NSGA-II, compared with their definitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpq.lab.policies.genetic_search import crowding, fronts


def by_definition(values: NDArray[np.float64]) -> list[int]:
    left, rank, found = set(range(len(values))), 0, [0] * len(values)
    while left:
        front = {
            i for i in left if not any((values[j] <= values[i]).all() and (values[j] < values[i]).any() for j in left)
        }
        for i in front:
            found[i] = rank
        left, rank = left - front, rank + 1
    return found


def test_fronts_match_their_definition() -> None:
    luck = np.random.default_rng(5)
    for size in (1, 2, 7, 60):
        values = luck.integers(6, size=(size, 2)).astype(float)  # few values, so many are equal
        assert fronts(values).tolist() == by_definition(values)


def test_distances_are_infinite_at_the_ends_and_follow_neighbours_inside() -> None:
    values = np.array([[0.0, 8.0], [1.0, 4.0], [1.0, 4.0], [4.0, 0.0], [9.0, 9.0]])
    distance = crowding(values, fronts(values))
    assert distance[[0, 3, 4]].tolist() == [np.inf] * 3
    assert sorted(distance[[1, 2]].tolist()) == [0.0, 1.0]  # (4/4 + 8/8) / 2, and its double has nothing
