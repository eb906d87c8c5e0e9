"""Multiple-choice knapsack: one option of each item, with sizes within capacities, and the largest
sum of values.

Exact by a dynamic programme up to a lab's size (Sinha and Zoltners 1979). Beyond it by prices, with
a bound on how much better the optimum could be. Deterministic: of equal values, the option that
comes first in its item wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_STATES = 40_000  # states of a dynamic programme: products of capacities + 1
EXACT_WORK = 500_000  # items x states
PRICE_STEPS = 80  # steps of the search for prices


@dataclass(frozen=True, slots=True)
class Item:
    """Options of one item: the size of each, its value, and the capacity that it uses (0 for all if
    there is one)."""

    sizes: Ints
    values: Array
    kinds: Ints


@dataclass(frozen=True, slots=True)
class Answer:
    """The option of each item by position, the sum of their values, and a bound that no choice can
    exceed."""

    choice: list[int]
    value: float
    bound: float


def item(options: Sequence[tuple[int, float]]) -> Item:
    """An item of (size, value) pairs, for one capacity."""
    sizes = np.array([size for size, _ in options], dtype=np.int64)
    return Item(
        sizes, np.array([value for _, value in options], dtype=np.float64), np.zeros_like(sizes)
    )


def solve(
    items: Sequence[Item], capacities: Sequence[int], *, exact: bool | None = None
) -> Answer | None:
    """None if no choice of sizes fits. `exact` chooses the way. By default the size of the problem
    does."""
    states = int(np.prod([capacity + 1 for capacity in capacities], dtype=np.float64))
    if exact is None:
        exact = states <= EXACT_STATES and len(items) * states <= EXACT_WORK
    if not exact:
        return _by_prices(items, capacities)
    axes = np.arange(len(capacities))
    needs: dict[bytes, Ints] = {}
    # by identity of the arrays, because equal ones are often one object
    needs_by_arrays: dict[tuple[int, int], Ints] = {}
    pairs = []
    for choice in items:
        arrays = id(choice.sizes), id(choice.kinds)
        if arrays not in needs_by_arrays:
            key = choice.sizes.tobytes() + choice.kinds.tobytes()
            if key not in needs:
                needs[key] = np.where(choice.kinds[:, None] == axes, choice.sizes[:, None], 0)
            needs_by_arrays[arrays] = needs[key]
        pairs.append((needs_by_arrays[arrays], choice.values))
    return exactly(pairs, capacities)


def exactly(items: Sequence[tuple[Ints, Array]], capacities: Sequence[int]) -> Answer | None:
    """The optimum if an option may use several capacities: needs (options x capacities) and values
    of each item.

    A dynamic programme over the used part of each capacity, all states at once, with one numpy
    operation per item.
    """
    shape = np.array(capacities) + 1
    strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
    states = np.arange(int(shape.prod()))
    # Slot 0 stands for "does not fit", so its value is minus infinity.
    best = np.concatenate([[-np.inf], np.zeros(len(states))])
    steps: list[Array] = []  # the best before each item
    # by needs: the states that options use, and the slots that reach each state
    ways: dict[int, tuple[Ints, Ints]] = {}
    for needs, values in items:
        way = ways.get(id(needs))
        if way is None:
            offsets = needs @ strides
            way = ways[id(needs)] = offsets, _sources(needs, offsets, states, strides, shape)
        steps.append(best)
        sums = best.take(way[1])
        sums += values[:, None]
        best = np.empty_like(best)
        best[0] = -np.inf
        np.maximum.reduce(sums, axis=0, out=best[1:])
    value = float(best[-1])
    if value == -np.inf:
        return None
    state = len(states) - 1
    choice: list[int] = []
    for (needs, values), best_before in zip(reversed(items), reversed(steps), strict=True):
        offsets, sources = ways[id(needs)]
        option = int((best_before.take(sources[:, state]) + values).argmax())
        choice.append(option)
        state -= int(offsets[option])
    return Answer(choice[::-1], value, value)


def _sources(needs: Ints, offsets: Ints, states: Ints, strides: Ints, shape: Ints) -> Ints:
    """Slots (options x states) from which each option reaches each state. 0 if the option does not
    fit."""
    slots: Ints = states + 1 - offsets[:, None]
    if len(shape) == 1:
        return np.maximum(slots, 0)
    usage = (states[:, None] // strides) % shape
    return np.where((usage >= needs[:, None, :]).all(axis=2), slots, 0)


def _by_prices(items: Sequence[Item], capacities: Sequence[int]) -> Answer | None:
    """Lagrangian relaxation: at a price per GPU of each kind, every item chooses for itself. The
    least sum over all prices bounds the optimum (Fisher 1981). Then the choices are made to fit,
    and the rest is given away greedily."""
    width = max((len(choice.sizes) for choice in items), default=1)
    sizes = np.zeros((len(items), width), dtype=np.int64)
    values = np.full((len(items), width), -np.inf)
    kinds = np.zeros((len(items), width), dtype=np.int64)
    for row, item in enumerate(items):
        columns = slice(len(item.sizes))
        sizes[row, columns], values[row, columns] = item.sizes, item.values
        kinds[row, columns] = item.kinds
    room = np.array(capacities, dtype=np.float64)
    prices, bound = _prices(sizes, values, kinds, room)
    choice = np.argmax(values - prices[kinds] * sizes, axis=1)
    if not _make_fit(choice, sizes, values, kinds, room):
        return None
    _fill(choice, sizes, values, kinds, room)
    value = float(values[np.arange(len(choice)), choice].sum())
    return Answer(choice.tolist(), value, max(bound, value))


def _prices(sizes: Ints, values: Array, kinds: Ints, room: Array) -> tuple[Array, float]:
    """The prices with the least bound, by bisection of one coordinate after the other (exact for
    one kind), and that bound."""
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
                usage = float((sizes[rows, pick] * (kinds[rows, pick] == kind)).sum())
                low, high = (prices[kind], high) if usage > room[kind] else (low, prices[kind])
                if high - low <= 1e-12 * top:
                    break
            prices[kind] = high
    bound = float(
        np.max(values - prices[kinds] * sizes, axis=1, initial=-np.inf).sum() + prices @ room
    )
    return prices, bound


def _make_fit(choice: Ints, sizes: Ints, values: Array, kinds: Ints, room: Array) -> bool:
    """Take back what costs least per GPU until every kind fits, in place. False if that is
    impossible."""
    rows = np.arange(len(choice))
    for kind in range(len(room)):
        while True:
            is_kind = kinds[rows, choice] == kind
            excess = float((sizes[rows, choice] * is_kind).sum()) - room[kind]
            if excess <= 0:
                break
            now_size, now_value = sizes[rows, choice], values[rows, choice]
            savings = now_size[:, None] - np.where(kinds == kind, sizes, 0)
            is_allowed = (
                is_kind[:, None]
                & (savings > 0)
                & np.isfinite(values)
                & ((kinds == kind) | (sizes == 0))
            )
            loss = np.where(
                is_allowed,
                (now_value[:, None] - values) / np.maximum(np.minimum(savings, excess), 1),
                np.inf,
            )
            best = int(np.argmin(loss))
            if not np.isfinite(loss.flat[best]):
                return False
            row, column = divmod(best, sizes.shape[1])
            choice[row] = column
    return True


def _fill(choice: Ints, sizes: Ints, values: Array, kinds: Ints, room: Array) -> None:
    """Give the rest to the item that gains most per GPU, one change of one item at a time, in
    place."""
    rows = np.arange(len(choice))
    usage = np.array(
        [(sizes[rows, choice] * (kinds[rows, choice] == kind)).sum() for kind in range(len(room))]
    )
    slack = room - usage
    for _ in range(len(choice)):
        now_size, now_kind = sizes[rows, choice], kinds[rows, choice]
        refund = np.where(kinds == now_kind[:, None], now_size[:, None], 0)
        need = sizes - refund
        gain = np.where(need <= slack[kinds], values - values[rows, choice][:, None], -np.inf)
        rate = np.where(gain > 1e-12, gain / np.maximum(need, 1), -np.inf)
        best = int(np.argmax(rate))
        if not np.isfinite(rate.flat[best]):
            return
        row, column = divmod(best, sizes.shape[1])
        slack[kinds[row, choice[row]]] += sizes[row, choice[row]]
        slack[kinds[row, column]] -= sizes[row, column]
        choice[row] = column
