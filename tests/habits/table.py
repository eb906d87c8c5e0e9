"""Runs habits, a few cells at a time, and prints the table. Refuses nothing: a verdict is data here."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .catalogue import Habit
from .cells import GOOD, Cell, alone, reference, run_cell
from .shapes import SHAPES


def run_habit(habit: Habit, shapes: Iterable[str], folder: Path) -> list[Cell]:
    """The cells of one row, one after the other."""
    if habit.alone:
        wanted = alone(habit, folder / "alone")
    else:
        wanted = reference(habit, folder / "plain")
    return [run_cell(habit, SHAPES[name], wanted, folder / name) for name in shapes]


def run_table(
    habits: list[Habit], shapes: list[str], parallel: int, each: Callable[[list[Cell]], None], keep: bool
) -> list[list[Cell]]:
    """All rows, `parallel` at a time; `each` is called with every row in turn. `keep` leaves what the replicas wrote."""
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


def row(cells: list[Cell], habit: Habit) -> str:
    """Cells in which right is demanded are in bold."""
    shown = [f"**{cell.shown()}**" if habit.demanded(cell.shape) else cell.shown() for cell in cells]
    return "| " + " | ".join([habit.name, *shown]) + " |"


def header(shapes: list[str]) -> str:
    return "| habit | " + " | ".join(shapes) + " |\n" + "|---" * (len(shapes) + 1) + "|"


def totals(rows: list[list[Cell]], shapes: list[str]) -> str:
    """A line a verdict: cells in all, and by shape."""
    lines = []
    counts = Counter(cell.verdict for cells in rows for cell in cells)
    order = [*GOOD, *sorted(set(counts) - set(GOOD))]
    for verdict in order:
        parts = [str(sum(cells[at].verdict == verdict for cells in rows)) for at in range(len(shapes))]
        lines.append(f"| {counts[verdict]} {verdict} | " + " | ".join(parts) + " |")
    return "\n".join(lines)
