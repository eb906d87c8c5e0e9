"""Exact multiple-choice knapsack: one option of each item, sizes within a capacity, the sum of values greatest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Option = tuple[int, float]  # (size >= 0, value)


def solve(items: Sequence[Sequence[Option]], capacity: int) -> list[int] | None:
    """The chosen option of each item, by its position; None when no choice of sizes fits.

    Dynamic programme over the capacity used, O(items x options x capacity), one numpy operation per item (Sinha and
    Zoltners, 1979). Deterministic: of equal values the option that stands first in its item.
    """
    used = np.arange(capacity + 1)
    best = np.zeros(capacity + 1)
    choices: list[NDArray[np.intp]] = []
    for options in items:
        sizes = np.array([size for size, _ in options])
        values = np.array([value for _, value in options])
        before = used[None, :] - sizes[:, None]
        reached = np.where(before >= 0, best[np.maximum(before, 0)] + values[:, None], -np.inf)
        choice = np.argmax(reached, axis=0)
        choices.append(choice)
        best = reached[choice, used]
    left = capacity
    if not np.isfinite(best[left]):
        return None
    picked: list[int] = []
    for options, choice in zip(reversed(items), reversed(choices), strict=True):
        option = int(choice[left])
        picked.append(option)
        left -= options[option][0]
    return picked[::-1]
