"""Pareto fronts of two values that are both to be least, and how far the members of a front lie
apart (NSGA-II)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def fronts(values: Floats) -> NDArray[np.intp]:
    """Of each row of `values` (n x 2) the front, 0 = nobody is as good in both and better in one.
    O(n log n): in the order of the first value, a front dominates a point if the least second value
    it has seen is no larger."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    front = 0
    least: list[float] = []
    found: list[int] = []
    before: list[float] = []
    for point in values[order].tolist():
        if point != before:
            front = bisect_right(least, point[1])
            least[front : front + 1] = [point[1]]
            before = point
        found.append(front)
    ranks = np.empty(len(values), dtype=np.intp)
    ranks[order] = found
    return ranks


def crowding(values: Floats, front: NDArray[np.intp]) -> Floats:
    """How far the neighbours in its front are apart, each value in units of the front's range;
    infinite at its ends, 0 for the second and later of equal ones."""
    distance = np.zeros(len(values))
    order = np.lexsort((values[:, 1], values[:, 0], front))
    ordered, in_front = values[order], front[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) | (in_front[1:] != in_front[:-1])
    order, ordered, in_front = order[fresh], ordered[fresh], in_front[fresh]
    first = np.flatnonzero(np.diff(in_front, prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    extent = np.abs(ordered[last] - ordered[first])[
        np.searchsorted(first, np.arange(len(order)), side="right") - 1
    ]
    gaps = np.abs(ordered[2:] - ordered[:-2]) / np.where(extent[1:-1] > 0, extent[1:-1], 1.0)
    apart = np.full(len(order), np.inf)
    apart[1:-1] = gaps.sum(axis=1) / 2.0
    apart[first] = apart[last] = np.inf
    distance[order] = apart
    return distance
