"""Faults at full size. Exits with 1 if a figure is over its bar or a run could not be finished.

    python benchmarks/chaos.py [NAME ...] [--times N] [--seed 0] [--out benchmarks/results/chaos.md]
    python benchmarks/chaos.py --list

Prints each run's figures next to their bars, and rewrites its section of the results file (not with
--times).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from tests.chaos.runs import Measured, Run, load, number  # noqa: E402

HEAD = """\
# Faults at full size

By `make chaos`, one section a run, each written by its last complete run. Rows are those of the \
table of faults that the tests are marked with. \
A file that the jobs themselves write is the judge, not gpq.
"""


def main() -> int:
    runs = load()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--list", action="store_true", help="list the runs and exit")
    parser.add_argument(
        "--times", type=int, help="size instead of the full one (writes a file only with --out)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="results file")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in runs]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(runs)}")
    if options.list:
        for each in runs.values():
            print(
                f"{each.name:<16} row {each.row:<8} {number(each.times):>6} x {each.unit}:"
                f" {each.about}"
            )
        return 0
    out = options.out or (None if options.times else ROOT / "benchmarks" / "results" / "chaos.md")
    good = [
        _one(runs[name], options.times or runs[name].times, options.seed, out)
        for name in options.names or runs
    ]
    return 0 if all(good) else 1


def _one(run: Run, times: int, seed: int, out: Path | None) -> bool:
    print(f"== {run.name}, row {run.row}: {number(times)} x {run.unit}", flush=True)
    began = time.monotonic()
    try:
        figures = run.body(times, seed)
    except Exception:  # the other runs are still worth having
        traceback.print_exc()
        print(f"{run.name}: FAILED before it ended", flush=True)
        return False
    seconds = time.monotonic() - began
    for each in figures:
        print(
            f"  {each.what:<44}{number(each.reached):>10} {each.unit:<3} {_verdict(each)}",
            flush=True,
        )
    print(f"  {seconds:.0f} s in all", flush=True)
    if out is not None:
        _write(out, run, _section(run, times, seed, seconds, figures))
    return all(each.good for each in figures)


def _verdict(each: Measured) -> str:
    asked = f"(asked: {each.asked})" if each.asked else ""
    return asked if each.good else f"{asked} FAILED {each.why}"


def _section(run: Run, times: int, seed: int, seconds: float, figures: Sequence[Measured]) -> str:
    rows = [
        f"| {each.what} | {number(each.reached)} {each.unit}".rstrip()
        + f" | {each.asked}{'' if each.good else ' FAILED'} |"
        for each in figures
    ]
    when = time.strftime("%Y-%m-%d")
    return "\n".join([
        f"## {run.name}: row {run.row}",
        "",
        f"{run.about} {number(times)} x {run.unit}, seed {seed}, "
        f"{seconds:.0f} s on {os.cpu_count()} cores, {when}.",
        "",
        "| | reached | asked |",
        "|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip


def _write(out: Path, run: Run, section: str) -> None:
    """Replace the section of the run's last result, in the order of rows."""
    text = out.read_text() if out.exists() else HEAD
    head, *sections = re.split(r"(?m)^(?=## )", text)
    kept = [each.rstrip() + "\n" for each in sections if not each.startswith(f"## {run.name}:")]
    ordered = sorted([*kept, section], key=_row)
    out.write_text("\n".join([head.rstrip() + "\n", *ordered]))


def _row(section: str) -> tuple[float, str]:
    found = re.match(r"## (\S+): row (\d+)", section)
    return (float(found[2]), found[1]) if found else (float("inf"), section)


if __name__ == "__main__":
    sys.exit(main())
