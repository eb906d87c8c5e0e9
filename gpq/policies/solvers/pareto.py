"""Pareto fronts of two values that are both minimised, and the distance between members of a front
(NSGA-II)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fronts(values: Floats) -> NDArray[np.intp]:
    """The front of each row of `values` (n x 2). In front 0, no other row is as good in both and
    better in one. O(n log n): in the order of the first value, a front dominates a point if the
    least second value that it has seen is no larger."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    front = 0
    least: list[float] = []
    sorted_ranks: list[int] = []
    previous_point: list[float] = []
    for point in values[order].tolist():
        if point != previous_point:
            front = bisect_right(least, point[1])
            least[front : front + 1] = [point[1]]
            previous_point = point
        sorted_ranks.append(front)
    ranks = np.empty(len(values), dtype=np.intp)
    ranks[order] = sorted_ranks
    return ranks


def crowding(values: Floats, front: NDArray[np.intp]) -> Floats:
    """The distance between a point's neighbours in its front, each value in units of the front's
    range. Infinite at its ends, 0 for the second and later of equal points."""
    distance = np.zeros(len(values))
    order = np.lexsort((values[:, 1], values[:, 0], front))
    sorted_values, sorted_fronts = values[order], front[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (sorted_values[1:] != sorted_values[:-1]).any(axis=1) | (
        sorted_fronts[1:] != sorted_fronts[:-1]
    )
    order, sorted_values, sorted_fronts = (
        order[is_first],
        sorted_values[is_first],
        sorted_fronts[is_first],
    )
    first = np.flatnonzero(np.diff(sorted_fronts, prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    extent = np.abs(sorted_values[last] - sorted_values[first])[
        np.searchsorted(first, np.arange(len(order)), side="right") - 1
    ]
    gaps = np.abs(sorted_values[2:] - sorted_values[:-2]) / np.where(
        extent[1:-1] > 0, extent[1:-1], 1.0
    )
    distances = np.full(len(order), np.inf)
    distances[1:-1] = gaps.sum(axis=1) / 2.0
    distances[first] = distances[last] = np.inf
    distance[order] = distances
    return distance
