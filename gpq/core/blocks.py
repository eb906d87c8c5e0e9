"""Free devices as blocks of powers of two: which sums of shapes can be placed, and a knapsack that respects it.

A node with 3 of 4 devices free is a block of two and one of one: on two such nodes two jobs find room on two GPUs each, a
third one does not. Sizes that divide each other fit whenever the blocks of each size and larger have room for all that
needs such blocks (Coffman, Garey and Johnson 1987). So classes of blocks are to the knapsack what types of GPUs are:
capacities of their own. Classes are told apart only where a choice does not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.knapsack import Item, solve
from gpq.core.models import Shape
from gpq.core.valuation import Valued

MOST_CELLS = 1_000_000  # states x options of a knapsack with classes: some 5 ms

Level = tuple[str, int]  # type of GPU, devices of a block


@dataclass(frozen=True, slots=True)
class Blocks:
    """Devices in blocks, by type and size of the block: types sorted, the largest blocks first."""

    devices: Mapping[Level, int]

    def crowded(self, shapes: Iterable[Shape]) -> set[Level]:
        """Levels for which the shapes need more blocks of this size or larger than there are."""
        needed = dict.fromkeys(self.devices, 0)
        for shape in shapes:
            needed[shape.gpu_type, self.least(shape)] += shape.replicas
        left: dict[str, int] = {}
        for (name, block), count in self.devices.items():
            left[name] = left.get(name, 0) + count - needed[name, block]
            needed[name, block] = left[name]
        return {level for level, room in needed.items() if room < 0}

    def least(self, shape: Shape) -> int:
        """The smallest block that it may come to lie in; where it spans nodes, or there is none so large, the largest."""
        sizes = [block for name, block in self.devices if name == shape.gpu_type]
        fitting = [block for block in sizes if block >= shape.replicas]
        return fitting[-1] if shape.nodes == 1 and fitting else sizes[0]

    def classes(self, cuts: set[Level]) -> list[tuple[str, int, int]]:
        """(type, largest block, devices) of each class, where blocks below a cut are told from those above."""
        found: list[tuple[str, int, int]] = []
        fresh = True
        for (name, block), count in self.devices.items():
            if fresh or found[-1][0] != name:
                found.append((name, block, count))
            else:
                found[-1] = (name, found[-1][1], found[-1][2] + count)
            fresh = (name, block) in cuts
        return found


def blocks_of(free: Mapping[str, Sequence[int]]) -> Blocks:
    """`free`: devices free on each node, by type."""
    found: dict[Level, int] = {}
    for name in sorted(free):
        for bit in reversed(range(max(free[name], default=0).bit_length())):
            devices = sum(count & (1 << bit) for count in free[name])
            if devices:
                found[name, 1 << bit] = devices
    return Blocks(found)


@dataclass(frozen=True, slots=True)
class Programme:
    """A knapsack; `options`: which option of its choice each position of an item stands for."""

    items: list[Item]
    capacities: list[int]
    options: list[NDArray[np.int64]]

    @property
    def cells(self) -> float:
        """States of a dynamic programme times what is tried in each."""
        return float(np.prod(np.array(self.capacities) + 1.0)) * sum(len(each) for each in self.options)


def programme(choices: Sequence[Valued], blocks: Blocks, cuts: Set[Level] = frozenset()) -> Programme:
    """An option stands once for each class of blocks that it may lie in."""
    classes = blocks.classes(cuts)
    homes: dict[Shape | None, list[tuple[int, int]]] = {None: [(0, 0)]}  # (size, class)
    items, options = [], []
    for each in choices:
        for shape in each.shapes:
            if shape is not None and shape not in homes:
                least = blocks.least(shape)
                homes[shape] = [
                    (shape.replicas, number)
                    for number, (name, largest, _) in enumerate(classes)
                    if name == shape.gpu_type and largest >= least
                ]
        rows = [(option, *home) for option, shape in enumerate(each.shapes) for home in homes[shape]]
        own, sizes, kinds = np.array(rows, dtype=np.int64).T
        items.append(Item(sizes, each.values[own], kinds))
        options.append(own)
    return Programme(items, [devices for *_, devices in classes], options)


def choose(choices: Sequence[Valued], blocks: Blocks) -> list[int] | None:
    """The best option of each choice by the sum of GPUs, and by blocks of those sizes for which it does not fit otherwise:
    positions in each choice's shapes. None where nothing fits. Where telling blocks apart would take too long, or sizes do
    not divide each other, what is chosen may still find no place."""
    cuts: set[Level] = set()
    picked: list[int] | None = None
    while True:
        asked = programme(choices, blocks, cuts)
        if cuts and asked.cells > MOST_CELLS:
            return picked
        answer = solve(asked.items, asked.capacities, exact=True if cuts else None)
        if answer is None:
            return picked
        picked = [int(own[position]) for own, position in zip(asked.options, answer.picked, strict=True)]
        chosen = [each.shapes[option] for each, option in zip(choices, picked, strict=True)]
        crowded = blocks.crowded(shape for shape in chosen if shape is not None)
        if crowded <= cuts:
            return picked
        cuts |= crowded
