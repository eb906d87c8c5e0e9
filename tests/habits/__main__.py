"""Makes the table of habits by hand: `python -m tests.habits`. To see everything that one cell printed:

python -m tests.habits clip-adamw --shape split --verbose
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .catalogue import load
from .cells import Cell
from .shapes import SHAPES
from .table import demanded, header, met, row, run_table, totals

ABOUT = """# Habits of training loops

`make habits` makes this table. Every loop is ordinary PyTorch with gpq's six lines (`tests/habits/`). It runs in six shapes of
the same batch size of 16:

- *one*: one replica
- *accumulate*: one replica that accumulates (5, 5 and 6 examples at a time)
- *split*: one replica in adaptive mode, whose sampled steps run as two micro-batches
- *two*: two replicas
- *two-acc*: two replicas that accumulate
- *resize*: stopped in mid-epoch and resumed with 2 replicas, then with 1

Each result is compared with the same loop in plain PyTorch, without gpq. The final weights, including averages, must agree
within 1e-4 of each tensor's norm.

| verdict | meaning |
|---|---|
| *right* | The weights agree. |
| *told* | The weights differ, and a line named the habit and the freedom that it takes. |
| *right, told* | The weights agree, and a line named the habit. |
| *refused* | The script ended with an error and a hint. |
| *gpq check* | The weights differ by this much, and only `gpq check` reports it (`make planted`). |
| *hint* | The weights differ by this much, and `gpq submit` sees the reason in the source. |
| SILENT | The weights differ, and nothing reports it. |
"""


def main() -> int:
    habits = load()
    parser = argparse.ArgumentParser(prog="python -m tests.habits", description="Makes the table of habits.")
    parser.add_argument("habits", nargs="*", metavar="HABIT", help="only these habits or groups (default: all)")
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="only this shape (may be repeated)")
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="show everything that each replica wrote to stderr"
    )
    parser.add_argument("--explain", "-e", action="store_true", help="explain under each row why cells are not right")
    parser.add_argument("--list", action="store_true", help="list the habits and what they do")
    parser.add_argument("--jobs", type=int, default=2, help="habits to run at a time")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    groups = {habit.group for habit in habits.values()}
    unknown = [name for name in arguments.habits if name not in habits and name not in groups]
    if unknown:
        parser.error(f"no habit or group {unknown[0]}: try --list")
    if arguments.list:
        sys.stdout.writelines(f"{habit.group:12} {habit.name:30} {habit.what}\n" for habit in habits.values())
        return 0
    chosen = [each for each in habits.values() if not arguments.habits or {each.name, each.group} & {*arguments.habits}]
    shapes = arguments.shape or list(SHAPES)

    def each(cells: list[Cell]) -> None:
        sys.stdout.write(row(cells) + "\n")
        for cell in cells:
            if arguments.verbose or (arguments.explain and cell.verdict != "right"):
                explain(cell, arguments.verbose)
        sys.stdout.flush()

    begin = time.monotonic()
    sys.stdout.write(header(shapes) + "\n")
    rows = run_table(chosen, shapes, arguments.jobs, each, arguments.verbose)
    summary = f"{totals(rows, shapes)}\n\n{demanded(rows)}\n"
    sys.stdout.write(f"\n{summary}{time.monotonic() - begin:.0f} s. To see everything that one cell printed:\n")
    sys.stdout.write("python -m tests.habits HABIT --shape SHAPE --verbose\n")
    if arguments.out:
        lines = [header(shapes, what=True), *(row(cells, what=True) for cells in rows)]
        arguments.out.write_text(f"{ABOUT}\n{time.strftime('%Y-%m-%d')}.\n\n" + "\n".join(lines) + f"\n\n{summary}")
    return int(not met(rows))


def explain(cell: Cell, verbose: bool) -> None:
    sys.stdout.write(f"  {cell.shape}: {cell.shown()}, largest difference {cell.difference:.2g} {cell.tensor}\n")
    for line in cell.said:
        sys.stdout.write(f"    {line}\n")
    if verbose:
        sys.stdout.write(f"    {cell.folder}, {cell.seconds:.1f} s\n")
        for path in sorted(cell.folder.glob("attempt-*/stderr.*")):
            sys.stdout.write(f"    -- {path.parent.name}, replica {path.suffix[1:]}\n")
            sys.stdout.writelines(f"    {line}\n" for line in path.read_text(errors="replace").splitlines())


if __name__ == "__main__":
    sys.exit(main())
