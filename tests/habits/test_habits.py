"""Every habit in every shape is right or told. If it must be right, it is right and prints nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.promises import BrokenPromise

from .catalogue import Habit, load
from .cells import SILENT, Cell
from .shapes import SHAPES
from .table import cell_met, run_habit


@pytest.mark.parametrize("habit", load().values(), ids=lambda habit: habit.name)
def test_every_shape_of_a_habit_is_right_or_told(habit: Habit, tmp_path: Path) -> None:
    wrong = [cell for cell in run_habit(habit, SHAPES, tmp_path) if not cell_met(cell)]
    if wrong:
        silent = any(cell.verdict == SILENT for cell in wrong)
        text = "\n".join([f"{habit.name}: {habit.what}", *(_reason(cell) for cell in wrong)])
        raise (BrokenPromise if silent else AssertionError)(text)


def _reason(cell: Cell) -> str:
    lines = [f"{cell.shape}: {cell.shown()} {cell.tensor}", *(f"  {line}" for line in cell.said)]
    return "\n".join([*lines, f"  python -m tests.habits {cell.habit} --shape {cell.shape} --verbose"])
