"""The table of habits by hand: `python -m tests.habits`. One cell, with everything that it said:

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

By `make habits`. Every loop is ordinary PyTorch with gpq's six lines (`tests/habits/`), and runs in every shape of the same total
batch of 16: one replica; one that accumulates (5, 5 and 6 at a time); one in adaptive mode, whose sampled steps run as two
micro-batches; two replicas; two that accumulate; and stopped in mid-epoch to go on with 2 replicas, then with 1. The measure is
the same loop in plain PyTorch, without gpq: final weights, averages included, within 1e-4 of each tensor's norm.

*right*: they agree. *told*: a line named the habit and the freedom that it takes; *right, told*: both; *refused*: an error with a
hint. *gpq check*: they differ, by so much, and only `gpq check` says so (`make planted`);
*hint*: so does `gpq submit`, from the source alone. SILENT: nobody says so.
"""


def main() -> int:
    habits = load()
    parser = argparse.ArgumentParser(prog="python -m tests.habits", description="The table of habits.")
    parser.add_argument(
        "habits", nargs="*", metavar="HABIT", help="some only, by name or group; all of them by default"
    )
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="some shapes only")
    parser.add_argument("--verbose", "-v", action="store_true", help="everything that each replica wrote to stderr")
    parser.add_argument("--explain", "-e", action="store_true", help="under each row, why cells are not right")
    parser.add_argument("--list", action="store_true", help="names and what they do")
    parser.add_argument("--jobs", type=int, default=2, help="habits at a time")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    groups = {habit.group for habit in habits.values()}
    unknown = [name for name in arguments.habits if name not in habits and name not in groups]
    if unknown:
        parser.error(f"no habit and no group {unknown[0]}: try --list")
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
    sys.stdout.write(f"\n{summary}{time.monotonic() - begin:.0f} s. One cell, with all that it said:\n")
    sys.stdout.write("python -m tests.habits HABIT --shape SHAPE --verbose\n")
    if arguments.out:
        lines = [header(shapes, what=True), *(row(cells, what=True) for cells in rows)]
        arguments.out.write_text(f"{ABOUT}\n{time.strftime('%Y-%m-%d')}.\n\n" + "\n".join(lines) + f"\n\n{summary}")
    return int(not met(rows))


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
