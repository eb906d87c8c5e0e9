"""The table of `gpq check`, in text."""

from __future__ import annotations

import msgspec

from gpq.verdicts import SAME, TOLD, FoundHabit, ShapeView, Verdict
from gpq.views.verdict import lines

HABIT = FoundHabit("batch-norm", ["accumulate", "split"], "batch norm (1) takes its own", "layer norm")


def verdict(*told: bool) -> Verdict:
    shapes = [
        ShapeView(
            f"shape {number}", TOLD if each else SAME, None, None, "", HABIT if each else None, [], "", ""
        )
        for number, each in enumerate(told)
    ]  # fmt: skip
    return Verdict("train.py", [], "", {}, "", "", TOLD, 8, 13, shapes, [HABIT], [], 0.0, 1.0, "")


def test_a_habit_names_the_shapes_it_concerns_or_every_shape() -> None:
    assert "every shape: gpq says: batch norm (1) takes its own" in lines(verdict(True, True), 0)
    assert "shape 0 / shape 2: gpq says: batch norm (1) takes its own" in lines(verdict(True, False, True), 0)


def test_freedoms_lost_until_a_fix_are_named_in_words() -> None:
    said = lines(verdict(True), 0)
    left = "accumulate (a step in several micro-batches), split (a step in two, to measure the noise scale)"
    assert f"  until then gpq does not use: {left}" in said
    unknown = msgspec.structs.replace(HABIT, freedoms=["another\n"])
    row = msgspec.structs.replace(verdict(True).shapes[0], habit=unknown)
    assert "  until then gpq does not use: another\\x0a" in lines(
        msgspec.structs.replace(verdict(True), shapes=[row]), 0
    )
