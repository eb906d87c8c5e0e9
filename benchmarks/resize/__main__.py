"""The pause of a real job that is resized, by how its replicas start, interleaved in one run.

    python -m benchmarks.resize [--millions 25,100] [--repetitions 5] [--out FILE]

A pause lasts from the last step before to the first step after, less a steady step. The ways are
torchrun, as gpq did until 0.1, gpq's own start of replicas, and the same from a standby. The table
has medians, and their ratios to the way before. The exit code is 1 if a ratio misses its bar.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.resize.measure import Pause, Way, resize
from benchmarks.workstation import slots

WAYS = {"torchrun": Way("torchrun"), "gpq": Way(), "standby": Way(standby=True)}
BASES = {"torchrun": "torchrun", "gpq": "torchrun", "standby": "gpq"}  # what its ratio is to


def main() -> int:
    options = _options()
    parts = [
        "# The pause of a resize\n",
        f"Written by `make bench-resize`, {time.strftime('%Y-%m-%d')}, on {slots()}."
        f" {options.repetitions} repetitions.\n",
    ]
    missed = []
    for millions in options.millions:
        pauses: dict[str, list[Pause]] = {way: [] for way in WAYS}
        for repetition in range(options.repetitions):
            for name, way in WAYS.items():
                pauses[name] += resize(millions, way)
                print(f"{millions} M, {name}, {repetition + 1}: {pauses[name][-2:]}", flush=True)
        parts.append(table(millions, pauses))
        missed += misses(millions, pauses)
    text = "\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text)
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


def table(millions: int, pauses: Mapping[str, Sequence[Pause]]) -> str:
    """Medians in seconds by way and kind of resize, with their ratios to the base."""
    kinds = _kinds(pauses)
    rows = [
        f"## {millions} million parameters\n",
        "| replicas started by | " + " | ".join(f"{a} -> {b}" for a, b in kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for way in pauses:
        cells = [
            f"{_median(pauses[way], kind):.2f} s, {_ratio(pauses, way, kind):.2f} of {BASES[way]}"
            for kind in kinds
        ]
        rows.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def misses(millions: int, pauses: Mapping[str, Sequence[Pause]]) -> list[str]:
    """A line for each ratio that is larger than its bar."""
    return [
        f"{millions} M, {way}, {kind[0]} -> {kind[1]}: {_ratio(pauses, way, kind):.2f}"
        f" of {BASES[way]}, the bar is {_bar(way, millions)}"
        for way in pauses
        for kind in _kinds(pauses)
        if _ratio(pauses, way, kind) > _bar(way, millions)
    ]


def _bar(way: str, millions: int) -> float:
    """The largest ratio that a way may have."""
    if way == "standby":
        return 0.30 if millions <= 25 else 0.35
    return 0.85 if way == "gpq" else 1.0


def _kinds(pauses: Mapping[str, Sequence[Pause]]) -> list[tuple[int, int]]:
    return sorted({(pause.before, pause.after) for pause in pauses["torchrun"]})


def _ratio(pauses: Mapping[str, Sequence[Pause]], way: str, kind: tuple[int, int]) -> float:
    return _median(pauses[way], kind) / _median(pauses[BASES[way]], kind)


def _median(pauses: Sequence[Pause], kind: tuple[int, int]) -> float:
    return statistics.median(
        pause.seconds for pause in pauses if (pause.before, pause.after) == kind
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--millions",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[25, 100],
        help="sizes of the model. Default: 25,100",
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the table to this file")
    options = parser.parse_args()
    if min(options.repetitions, *options.millions) < 1:
        parser.error("--repetitions and --millions must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
