"""Runs habits, a few at a time, and writes the table. Refuses nothing, because a verdict is data here."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .catalogue import HABITS, Habit
from .cells import GOOD, Cell, alone, reference, run_cell
from .shapes import SHAPES


def run_habit(habit: Habit, shapes: Iterable[str], folder: Path) -> list[Cell]:
    """The cells of one row, two at a time. The longest go first, because a shape with stops mostly waits."""
    measure = alone if habit.alone else reference
    wanted = measure(habit, folder / "wanted")
    longest = sorted(shapes, key=lambda name: -len(SHAPES[name].replicas))
    with ThreadPoolExecutor(2) as pool:
        cells = {name: pool.submit(run_cell, habit, SHAPES[name], wanted, folder / name) for name in longest}
    return [cells[name].result() for name in shapes]


def run_table(
    habits: list[Habit], shapes: list[str], parallel: int, each: Callable[[list[Cell]], None], keep: bool
) -> list[list[Cell]]:
    """All rows, `parallel` at a time. Calls `each` with every row in turn. `keep` keeps the files of the replicas."""
    folder = Path(tempfile.mkdtemp(prefix="habits-"))
    rows = []
    try:
        with ThreadPoolExecutor(parallel) as pool:
            futures = [pool.submit(run_habit, habit, shapes, folder / habit.name) for habit in habits]
            for future in futures:
                rows.append(future.result())
                each(rows[-1])
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def row(cells: list[Cell], *, what: bool = False) -> str:
    """One row. Cells that must be right are in bold. `what`: say what the loop does."""
    habit = HABITS[cells[0].habit]
    shown = [f"**{cell.shown()}**" if habit.demanded(cell.shape) else cell.shown() for cell in cells]
    return "| " + " | ".join([habit.name, *([habit.what] if what else []), *shown]) + " |"


def header(shapes: list[str], *, what: bool = False) -> str:
    names = ["habit", *(["what the loop does"] if what else []), *shapes]
    return "| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|"


def totals(rows: list[list[Cell]], shapes: list[str]) -> str:
    """A separate table: one line for each verdict, with cells by shape and in total."""
    counts = Counter(cell.verdict for cells in rows for cell in cells)
    lines = [header([*shapes, "all"]).replace("habit", "verdict", 1)]
    for verdict in [*GOOD, *sorted(set(counts) - set(GOOD))]:
        parts = [str(sum(cells[at].verdict == verdict for cells in rows)) for at in range(len(shapes))]
        lines.append(f"| {verdict} | " + " | ".join([*parts, str(counts[verdict])]) + " |")
    return "\n".join(lines)


def demanded(rows: list[list[Cell]]) -> str:
    """How many of the cells in bold are right."""
    cells = [cell for cells in rows for cell in cells if HABITS[cell.habit].demanded(cell.shape)]
    return f"Cells in bold must be right: {sum(cell.verdict == 'right' for cell in cells)} of {len(cells)} are."


def met(rows: list[list[Cell]]) -> bool:
    """Whether every cell is right or told, and right if it is in bold."""
    return all(cell_met(cell) for cells in rows for cell in cells)


def cell_met(cell: Cell) -> bool:
    return cell.verdict == "right" if HABITS[cell.habit].demanded(cell.shape) else cell.good
