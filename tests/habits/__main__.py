"""The table of habits by hand: `python -m tests.habits`, or one cell with everything it said:

python -m tests.habits clip-adamw --shape split --verbose
"""

from __future__ import annotations

import argparse
import sys
import time

from .catalogue import HABITS, load
from .cells import Cell
from .shapes import SHAPES
from .table import header, row, run_table, totals


def main() -> int:
    habits = load()
    parser = argparse.ArgumentParser(prog="python -m tests.habits", description="The table of habits.")
    parser.add_argument("habits", nargs="*", metavar="HABIT", help="some only, by name or group; all of them by default")
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="some shapes only")
    parser.add_argument("--verbose", "-v", action="store_true", help="everything that each replica wrote to stderr")
    parser.add_argument("--explain", "-e", action="store_true", help="under each row, why cells are not right")
    parser.add_argument("--list", action="store_true", help="names and what they do")
    parser.add_argument("--jobs", type=int, default=2, help="habits at a time")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.habits if name not in habits and name not in {h.group for h in habits.values()}]
    if unknown:
        parser.error(f"no habit {unknown[0]}: try --list")
    if arguments.list:
        for habit in habits.values():
            sys.stdout.write(f"{habit.name:28} {habit.what}\n")
        return 0
    chosen = [h for h in habits.values() if not arguments.habits or {h.name, h.group} & set(arguments.habits)]
    shapes = arguments.shape or list(SHAPES)

    def each(cells: list[Cell]) -> None:
        sys.stdout.write(row(cells, HABITS[cells[0].habit]) + "\n")
        for cell in cells:
            if arguments.verbose or (arguments.explain and cell.verdict != "right"):
                explain(cell, arguments.verbose)
        sys.stdout.flush()

    begin = time.monotonic()
    sys.stdout.write(header(shapes) + "\n")
    rows = run_table(chosen, shapes, arguments.jobs, each, arguments.verbose)
    sys.stdout.write(totals(rows, shapes) + "\n\n")
    demanded = [cell for cells in rows for cell in cells if HABITS[cell.habit].demanded(cell.shape)]
    right = sum(cell.verdict == "right" for cell in demanded)
    sys.stdout.write(f"In bold, right is demanded: {right} of {len(demanded)} cells. {time.monotonic() - begin:.0f} s\n")
    sys.stdout.write("One cell, with all that it said: python -m tests.habits HABIT --shape SHAPE --verbose\n")
    return int(right < len(demanded) or any(not cell.good for cells in rows for cell in cells))


def explain(cell: Cell, verbose: bool) -> None:
    sys.stdout.write(f"  {cell.shape}: {cell.shown()}; largest difference {cell.difference:.2g} {cell.tensor}\n")
    for line in cell.said:
        sys.stdout.write(f"    {line}\n")
    if verbose:
        sys.stdout.write(f"    {cell.folder}, {cell.seconds:.1f} s\n")
        for path in sorted(cell.folder.glob("attempt-*/stderr.*")):
            sys.stdout.write(f"    -- {path.parent.name}, replica {path.suffix[1:]}\n")
            sys.stdout.writelines(f"    {line}\n" for line in path.read_text(errors="replace").splitlines())


if __name__ == "__main__":
    sys.exit(main())
