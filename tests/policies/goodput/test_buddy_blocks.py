"""Blocks of free devices, compared with every way to lay shapes onto servers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.model.placements import Shape
from gpq.core.model.units import JobId
from gpq.policies.goodput.buddy_blocks import blocks_of, choose
from gpq.policies.goodput.candidates import menu_of
from gpq.policies.goodput.valuation import Valuation

nodes = st.lists(st.integers(1, 8), min_size=1, max_size=4)


def fits(free: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether jobs of these sizes, each on one server, fit onto the servers. Tries every way."""

    @cache
    def rest(left: tuple[int, ...], todo: tuple[int, ...]) -> bool:
        if not todo:
            return True
        ways = {tuple(sorted((*left[:at], room - todo[0], *left[at + 1 :]))) for at, room in enumerate(left)}
        return any(min(way) >= 0 and rest(way, todo[1:]) for way in ways)

    return rest(tuple(sorted(free)), tuple(sorted(sizes, reverse=True)))


def on_one(size: int) -> Shape:
    return Shape(size, 1)


def valued(number: int, worths: dict[int, float], tidy: Sequence[int]) -> Valuation:
    sizes = [*(size for size in worths if size in tidy), *(size for size in worths if size not in tidy)]
    shapes = (None, *(on_one(size) for size in sizes))
    return Valuation(JobId(number), menu_of(shapes, 1 + len(tidy)), np.array([0.0, *(worths[size] for size in sizes)]))


@given(nodes, st.lists(st.sampled_from([1, 2, 4, 8]), max_size=8))
def test_powers_of_two_fit_if_and_only_if_no_level_is_overfull(free: list[int], sizes: list[int]) -> None:
    largest = 1 << (max(free).bit_length() - 1)
    sizes = [min(size, largest) for size in sizes]
    assert (not blocks_of({"": free}).crowded_levels(map(on_one, sizes))) == fits(free, sizes)


@given(nodes, st.lists(st.lists(st.floats(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(deadline=None)
def test_the_choice_fits_and_no_fitting_choice_is_worth_more(free: list[int], worths: list[list[float]]) -> None:
    sizes = [size for size in (1, 2, 4) if size <= 1 << (max(free).bit_length() - 1)]
    choices = [valued(n, dict(zip(sizes, own, strict=False)), sizes) for n, own in enumerate(worths, 1)]
    picked = choose(choices, blocks_of({"": free}))
    assert picked is not None

    def laid(options: Sequence[int]) -> list[int]:
        shapes = [each.shapes[option] for each, option in zip(choices, options, strict=True)]
        return [shape.replicas for shape in shapes if shape is not None]

    def worth(options: Sequence[int]) -> float:
        return sum(float(each.values[option]) for each, option in zip(choices, options, strict=True))

    assert fits(free, laid(picked))
    others = product(*(range(len(each.shapes)) for each in choices))
    assert worth(picked) == pytest.approx(max(worth(each) for each in others if fits(free, laid(each))))


def test_the_least_valuable_job_gives_way_and_remainders_merge() -> None:
    """Three GPUs are free on each server: five jobs on two GPUs each fit the sum of 10 but not the servers."""
    free = [3, 3, 4]
    choices = [valued(n, {1: 1.0, 2: 4.0 + n, 3: 4.5 + 1.1 * n, 4: 4.6 + 1.1 * n}, (1, 2, 4)) for n in range(1, 6)]
    assert not fits(free, [2, 2, 2, 2, 2])
    picked = choose(choices, blocks_of({"": free}))
    assert picked is not None
    shapes = [each.shapes[option] for each, option in zip(choices, picked, strict=True)]
    assert [shape.replicas if shape else 0 for shape in shapes] == [1, 2, 2, 2, 3]


def test_parts_are_powers_of_two_and_spanning_jobs_take_the_largest_servers_whole() -> None:
    blocks = blocks_of({"": [1, 4, 4, 3]})
    assert [blocks.pieces(Shape(n, 1)) for n in (1, 3, 6, 7)] == [[1], [1, 2], [2, 4], [1, 2, 4]]
    assert blocks.pieces(Shape(11, 3)) == [4, 4, 1, 2]
    assert blocks.pieces(Shape(6, 2)) == [4, 2]


def test_a_server_whose_size_is_no_power_of_two_is_fully_used() -> None:
    """3 + 1 on servers with 3 and 1: there is no block of four, but there is room."""
    blocks = blocks_of({"": [3, 1]})
    spans = Shape(4, 2)
    assert not blocks.crowded_levels([spans])
    one = Valuation(JobId(1), menu_of((on_one(3), None, spans), 3), np.array([1.0, 0.0, 1.2]))
    assert choose([one], blocks) == [2]
    other = Valuation(JobId(2), menu_of((None, on_one(1)), 2), np.array([0.0, 1.0]))
    assert choose([one, other], blocks) == [0, 1]


def test_gpu_types_are_kept_apart() -> None:
    blocks = blocks_of({"a": [3], "b": [4]})
    assert blocks.capacities == {"a": 3, "b": 4}
    assert blocks.crowded_levels([Shape(2, 1, "a"), Shape(2, 1, "a")]) == {("a", 2), ("a", 1)}
    assert not blocks.crowded_levels([Shape(2, 1, "a"), Shape(1, 1, "a"), Shape(4, 1, "b")])


def test_without_a_free_device_nobody_gets_one() -> None:
    choices = [valued(1, {1: 3.0, 2: 5.0}, (1, 2)), valued(2, {1: 1.0}, (1,))]
    assert choose(choices, blocks_of({"a100": [0, 0]})) == [0, 0]
    assert choose(choices, blocks_of({})) == [0, 0]
