"""Free devices as blocks of powers of two: which sums of shapes fit, and a knapsack that respects
this.

A node with 3 of 4 devices free is a block of two and one of one. Two such nodes have room for two
jobs with two GPUs each, but not for a third one. Sizes that divide each other fit if the blocks of
each size and larger have room for everything that needs such blocks (Coffman, Garey and Johnson
1987). So a class of blocks has its own capacity in the knapsack, like a type of GPU. The knapsack
distinguishes classes only if a choice does not fit otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.model.placements import Shape
from gpq.policies.goodput.valuation import Valuation
from gpq.policies.shared.knapsack import Answer, Item, exactly, solve

MOST_CELLS = 200_000  # states x options of a knapsack with classes: a few milliseconds

Ints = NDArray[np.int64]
Level = tuple[str, int]  # type of GPU, devices of a block


@dataclass(frozen=True, slots=True)
class Blocks:
    """Devices in blocks, by type and size of the block: types sorted, the largest blocks first.
    `counts`: free devices of each node by type, the largest count first."""

    devices: Mapping[Level, int]
    counts: Mapping[str, tuple[int, ...]]

    def crowded_levels(self, shapes: Iterable[Shape]) -> set[Level]:
        """Levels for which the shapes need more blocks of this size or larger than there are."""
        balance = dict(self.devices)
        sizes: dict[str, list[int]] = {}
        for name, block in self.devices:
            sizes.setdefault(name, []).append(block)
        for shape, count in Counter(shapes).items():
            type_blocks = sizes[shape.gpu_type]
            for piece in self.pieces(shape):
                fitting_blocks = [block for block in type_blocks if block >= piece]
                block = min(fitting_blocks, default=type_blocks[0])
                balance[shape.gpu_type, block] -= piece * count
        room: dict[str, int] = {}
        levels = set()
        for (name, block), devices in balance.items():
            room[name] = room.get(name, 0) + devices
            if room[name] < 0:
                levels.add((name, block))
        return levels

    def pieces(self, shape: Shape) -> list[int]:
        """Devices of a shape in powers of two, as blocks can hold it. A shape that spans nodes
        takes the largest nodes whole, and the rest of the last one."""
        remainder, powers = shape.replicas, list[int]()
        counts: tuple[int, ...] = (shape.replicas,)
        if shape.nodes > 1:
            counts = self.counts[shape.gpu_type][: shape.nodes]
        for count in counts:
            part = min(remainder, count)
            powers += [1 << bit for bit in range(part.bit_length()) if part & (1 << bit)]
            remainder -= part
        return powers

    @property
    def capacities(self) -> dict[str, int]:
        """Devices by type."""
        totals: dict[str, int] = {}
        for (name, _), count in self.devices.items():
            totals[name] = totals.get(name, 0) + count
        return totals

    def classes(self, cuts: set[Level]) -> list[tuple[str, int, int]]:
        """(type, largest block, devices) of each class. A cut separates the blocks below it from
        those above."""
        classes: list[tuple[str, int, int]] = []
        is_new = True
        for (name, block), count in self.devices.items():
            if is_new or classes[-1][0] != name:
                classes.append((name, block, count))
            else:
                classes[-1] = (name, classes[-1][1], classes[-1][2] + count)
            is_new = (name, block) in cuts
        return classes


def blocks_of(free: Mapping[str, Sequence[int]]) -> Blocks:
    """`free`: devices free on each node, by type."""
    blocks: dict[Level, int] = {}
    for name in sorted(free):
        for bit in reversed(range(max(free[name], default=0).bit_length())):
            devices = sum(count & (1 << bit) for count in free[name])
            if devices:
                blocks[name, 1 << bit] = devices
    return Blocks(
        blocks, {name: tuple(sorted(counts, reverse=True)) for name, counts in free.items()}
    )


def programme(
    choices: Sequence[Valuation], capacities: Mapping[str, int]
) -> tuple[list[Item], list[int]]:
    """The knapsack by sums of GPUs, of the shapes that always fit together. Without any free device
    it has one capacity of none."""
    numbers = {name: number for number, name in enumerate(capacities)}
    kinds: dict[int, Ints] = {}  # by menu: equal ones are often one object
    items = []
    for choice in choices:
        menu = choice.menu
        if id(menu) not in kinds:
            kinds[id(menu)] = np.array(
                [numbers.get(name, 0) for name in menu.types], dtype=np.int64
            )
        items.append(Item(menu.sizes, choice.values[: menu.tidy], kinds[id(menu)]))
    return items, list(capacities.values()) or [0]


def choose(choices: Sequence[Valuation], blocks: Blocks) -> list[int] | None:
    """The best option of each choice by the sum of GPUs, as positions in each choice's shapes. If
    that does not fit, the sizes in question are counted by blocks. None if nothing fits. If
    counting by blocks would take too long, part of the choice may still find no place."""
    answer = solve(*programme(choices, blocks.capacities))
    cuts: set[Level] = set()
    while answer is not None:
        options = answer.choice
        shapes = [choice.shapes[option] for choice, option in zip(choices, options, strict=True)]
        crowded_levels = blocks.crowded_levels(shape for shape in shapes if shape is not None)
        if crowded_levels <= cuts:
            return options
        cuts |= crowded_levels
        answer = _by_blocks(choices, blocks, blocks.classes(cuts))
        if answer is None:
            return options
    return None


Class = tuple[str, int, int]  # type, largest block, devices


def _by_blocks(
    choices: Sequence[Valuation], blocks: Blocks, classes: Sequence[Class]
) -> Answer | None:
    """None if it would take too long, or if nothing fits."""
    menus = _block_menus(choices, blocks, classes)
    choice_menus = [menus[id(choice.menu)] for choice in choices]
    capacities = [devices for *_, devices in classes]
    states = float(np.prod(np.array(capacities) + 1.0))
    if states * sum(len(options) for options, _ in choice_menus) > MOST_CELLS:
        return None
    needs = [
        (option_needs, choice.values[options])
        for (options, option_needs), choice in zip(choice_menus, choices, strict=True)
    ]
    answer = exactly(needs, capacities)
    if answer is None:
        return None
    picks = zip(choice_menus, answer.choice, strict=True)
    solution = [int(options[position]) for (options, _), position in picks]
    return Answer(solution, answer.value, answer.bound)


def _block_menus(
    choices: Sequence[Valuation], blocks: Blocks, classes: Sequence[Class]
) -> dict[int, tuple[Ints, Ints]]:
    """By menu, for each way to place a shape in blocks: (the option, what it takes from each
    class)."""
    homes: dict[Shape | None, list[tuple[int, ...]]] = {None: [(0,) * len(classes)]}
    menus: dict[int, tuple[Ints, Ints]] = {}
    for menu in {id(choice.menu): choice.menu for choice in choices}.values():
        for shape in menu.shapes:
            if shape is not None and shape not in homes:
                homes[shape] = _homes(shape, blocks, classes)
        rows = [(option, home) for option, shape in enumerate(menu.shapes) for home in homes[shape]]
        options, needs = zip(*rows, strict=True)
        menus[id(menu)] = np.array(options), np.array(needs)
    return menus


def _homes(shape: Shape, blocks: Blocks, classes: Sequence[Class]) -> list[tuple[int, ...]]:
    """What it takes from each class, for each way to place it: in blocks that hold all of it, or in
    pieces if that differs."""
    type_classes = [number for number, (name, _, _) in enumerate(classes) if name == shape.gpu_type]
    ways: list[dict[int, int]] = []
    if shape.nodes == 1:
        whole_block = 1 << (shape.replicas - 1).bit_length()
        ways = [
            {number: whole_block} for number in type_classes if classes[number][1] >= whole_block
        ]
    # Every piece goes to the class of the smallest blocks that hold it, otherwise to that of the
    # largest.
    split = Counter[int]()
    for piece in blocks.pieces(shape):
        fitting_classes = [number for number in type_classes if classes[number][1] >= piece]
        split[max(fitting_classes, default=type_classes[0])] += piece
    if len(split) > 1 or not ways:
        ways.append(split)
    return [tuple(way.get(number, 0) for number in range(len(classes))) for way in ways]
