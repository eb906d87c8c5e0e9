"""Multiple-choice knapsack: one option of each item, sizes within capacities, the sum of values
greatest.

Exact by a dynamic programme up to a lab's size (Sinha and Zoltners 1979); beyond it by prices, with
a bound on what the optimum could be worth more. Deterministic: of equal values the option that
stands first in its item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_STATES = 40_000  # of a dynamic programme: products of capacities + 1
EXACT_WORK = 500_000  # items x states
PRICE_STEPS = 80  # of the search for prices


@dataclass(frozen=True, slots=True)
class Item:
    """Options of one item: the size of each, its value, and which capacity it takes from (all 0
    where there is one)."""

    sizes: Ints
    values: Array
    kinds: Ints


@dataclass(frozen=True, slots=True)
class Answer:
    """The option of each item by position, the sum of their values, and what no choice can
    exceed."""

    picked: list[int]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """Of the optimum, at most this is missing, in units of value."""
        return max(self.bound - self.value, 0.0)


def item(options: Sequence[tuple[int, float]]) -> Item:
    """Of (size, value) pairs, for one capacity."""
    sizes = np.array([size for size, _ in options], dtype=np.int64)
    return Item(
        sizes, np.array([value for _, value in options], dtype=np.float64), np.zeros_like(sizes)
    )


def solve(
    items: Sequence[Item], capacities: Sequence[int], *, exact: bool | None = None
) -> Answer | None:
    """None when no choice of sizes fits. `exact`: which way; default by the size of the problem."""
    states = int(np.prod([capacity + 1 for capacity in capacities], dtype=np.float64))
    if exact is None:
        exact = states <= EXACT_STATES and len(items) * states <= EXACT_WORK
    if not exact:
        return _by_prices(items, capacities)
    return _exactly(items, capacities)


def _exactly(items: Sequence[Item], capacities: Sequence[int]) -> Answer | None:
    axes = np.arange(len(capacities))
    needs: dict[bytes, Ints] = {}
    # the same by the very arrays: equal ones are often one object
    known: dict[tuple[int, int], Ints] = {}
    for each in items:
        if (id(each.sizes), id(each.kinds)) not in known:
            key = each.sizes.tobytes() + each.kinds.tobytes()
            if key not in needs:
                needs[key] = np.where(each.kinds[:, None] == axes, each.sizes[:, None], 0)
            known[id(each.sizes), id(each.kinds)] = needs[key]
    return exactly(
        [(known[id(each.sizes), id(each.kinds)], each.values) for each in items], capacities
    )


def exactly(items: Sequence[tuple[Ints, Array]], capacities: Sequence[int]) -> Answer | None:
    """The optimum where an option may take from several capacities: needs (options x capacities)
    and values of each item.

    A dynamic programme over what is used of each capacity, all states at once: one numpy operation
    an item.
    """
    shape = np.array(capacities) + 1
    strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
    states = np.arange(int(shape.prod()))
    # Slot 0 stands for "does not fit": what is taken from before it is minus infinity.
    best = np.concatenate([[-np.inf], np.zeros(len(states))])
    steps: list[Array] = []  # the best before each item
    # by needs: the states that options take, and whence they reach each state
    ways: dict[int, tuple[Ints, Ints]] = {}
    for needs, values in items:
        way = ways.get(id(needs))
        if way is None:
            taken = needs @ strides
            way = ways[id(needs)] = taken, _sources(needs, taken, states, strides, shape)
        steps.append(best)
        reached = best.take(way[1])
        reached += values[:, None]
        best = np.empty_like(best)
        best[0] = -np.inf
        np.maximum.reduce(reached, axis=0, out=best[1:])
    value = float(best[-1])
    if value == -np.inf:
        return None
    left = len(states) - 1
    picked: list[int] = []
    for (needs, values), before in zip(reversed(items), reversed(steps), strict=True):
        taken, sources = ways[id(needs)]
        option = int((before.take(sources[:, left]) + values).argmax())
        picked.append(option)
        left -= int(taken[option])
    return Answer(picked[::-1], value, value)


def _sources(needs: Ints, taken: Ints, states: Ints, strides: Ints, shape: Ints) -> Ints:
    """Slots (options x states) that each state is reached from by each option, 0 where the option
    does not fit."""
    slots: Ints = states + 1 - taken[:, None]
    if len(shape) == 1:
        return np.maximum(slots, 0)
    used = (states[:, None] // strides) % shape
    return np.where((used >= needs[:, None, :]).all(axis=2), slots, 0)


def _by_prices(items: Sequence[Item], capacities: Sequence[int]) -> Answer | None:
    """Lagrangian relaxation: at a price a GPU of each kind every item picks for itself; the least
    sum over all prices bounds the optimum (Fisher 1981). The picks are then made to fit, and what
    is left over is given away greedily."""
    sizes, values, kinds = _padded(items)
    room = np.array(capacities, dtype=np.float64)
    prices, bound = _prices(sizes, values, kinds, room)
    picked = np.argmax(values - prices[kinds] * sizes, axis=1)
    if not _make_fit(picked, sizes, values, kinds, room):
        return None
    _fill(picked, sizes, values, kinds, room)
    value = float(values[np.arange(len(picked)), picked].sum())
    return Answer(picked.tolist(), value, max(bound, value))


def _padded(items: Sequence[Item]) -> tuple[Ints, Array, Ints]:
    width = max((len(each.sizes) for each in items), default=1)
    sizes = np.zeros((len(items), width), dtype=np.int64)
    values = np.full((len(items), width), -np.inf)
    kinds = np.zeros((len(items), width), dtype=np.int64)
    for row, each in enumerate(items):
        count = len(each.sizes)
        sizes[row, :count], values[row, :count], kinds[row, :count] = (
            each.sizes,
            each.values,
            each.kinds,
        )
    return sizes, values, kinds


def _prices(sizes: Ints, values: Array, kinds: Ints, room: Array) -> tuple[Array, float]:
    """Prices of least bound: coordinate by coordinate by bisection (exact for one kind), then that
    bound."""
    prices = np.zeros(len(room))
    rows = np.arange(len(sizes))
    spread = np.where(np.isfinite(values), values, 0.0)
    top = float(spread.max(initial=0.0) - spread.min(initial=0.0)) + 1e-9
    rounds = 1 if len(room) == 1 else 4
    for _ in range(rounds):
        for kind in range(len(room)):
            low, high = 0.0, top
            for _ in range(PRICE_STEPS // (1 if rounds == 1 else 2)):
                prices[kind] = 0.5 * (low + high)
                pick = np.argmax(values - prices[kinds] * sizes, axis=1)
                used = float((sizes[rows, pick] * (kinds[rows, pick] == kind)).sum())
                low, high = (prices[kind], high) if used > room[kind] else (low, prices[kind])
                if high - low <= 1e-12 * top:
                    break
            prices[kind] = high
    bound = float(
        np.max(values - prices[kinds] * sizes, axis=1, initial=-np.inf).sum() + prices @ room
    )
    return prices, bound


def _make_fit(picked: Ints, sizes: Ints, values: Array, kinds: Ints, room: Array) -> bool:
    """Take back what costs least a GPU until every kind fits, in place; False where that is not
    possible."""
    rows = np.arange(len(picked))
    for kind in range(len(room)):
        while True:
            mine = kinds[rows, picked] == kind
            over = float((sizes[rows, picked] * mine).sum()) - room[kind]
            if over <= 0:
                break
            now_size, now_value = sizes[rows, picked], values[rows, picked]
            less = now_size[:, None] - np.where(kinds == kind, sizes, 0)
            allowed = (
                mine[:, None] & (less > 0) & np.isfinite(values) & ((kinds == kind) | (sizes == 0))
            )
            loss = np.where(
                allowed,
                (now_value[:, None] - values) / np.maximum(np.minimum(less, over), 1),
                np.inf,
            )
            best = int(np.argmin(loss))
            if not np.isfinite(loss.flat[best]):
                return False
            row, column = divmod(best, sizes.shape[1])
            picked[row] = column
    return True


def _fill(picked: Ints, sizes: Ints, values: Array, kinds: Ints, room: Array) -> None:
    """Give what is left to whoever gains most by a GPU, one change of one item at a time, in
    place."""
    rows = np.arange(len(picked))
    used = np.array(
        [(sizes[rows, picked] * (kinds[rows, picked] == kind)).sum() for kind in range(len(room))]
    )
    left = room - used
    for _ in range(len(picked)):
        now_size, now_kind = sizes[rows, picked], kinds[rows, picked]
        back = np.where(kinds == now_kind[:, None], now_size[:, None], 0)
        need = sizes - back
        gain = np.where(need <= left[kinds], values - values[rows, picked][:, None], -np.inf)
        rate = np.where(gain > 1e-12, gain / np.maximum(need, 1), -np.inf)
        best = int(np.argmax(rate))
        if not np.isfinite(rate.flat[best]):
            return
        row, column = divmod(best, sizes.shape[1])
        left[kinds[row, picked[row]]] += sizes[row, picked[row]]
        left[kinds[row, column]] -= sizes[row, column]
        picked[row] = column
