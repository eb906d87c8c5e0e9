"""Prints the rooms of gpq and its agent, lowest first: files, lines, and which rooms each imports.
Exits with 1 if two rooms import each other, directly or through others.

Runs as `make rooms`. Imports for type checkers alone do not count. Imports inside functions do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
FOLDERS = {"gpq": ROOT / "gpq", "gpq_agent": ROOT / "agent" / "gpq_agent"}


def file_of(module: str) -> Path:
    package, *parts = module.split(".")
    place = FOLDERS[package].joinpath(*parts)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def is_package(module: str) -> bool:
    return file_of(module).name == "__init__.py"


def rooms_of(graph: grimp.ImportGraph) -> dict[str, str]:
    """Module -> its room, which is its package. A module directly in gpq is its own room, because
    each of them is a floor. So is an `__init__.py` that imports what it offers, because it stands
    above its package."""
    rooms = {}
    for module in graph.modules:
        package = module.rpartition(".")[0]
        if is_package(module):
            rooms[module] = (
                f"{module} (face)" if graph.find_modules_directly_imported_by(module) else module
            )
        else:
            rooms[module] = module if package in FOLDERS else package
    return rooms


def rooms_below(graph: grimp.ImportGraph, rooms: Mapping[str, str]) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    below: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for module, room in rooms.items():
        below[room] |= {
            rooms[other] for other in graph.find_modules_directly_imported_by(module)
        } - {room}
    return below


def levels(below: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """0 for a room that imports none, otherwise one more than the highest room that it imports.
    Raises CycleError."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        level[room] = max((level[other] + 1 for other in below[room]), default=0)
    return level


def main() -> int:
    graph = grimp.build_graph(*FOLDERS, exclude_type_checking_imports=True)
    rooms = rooms_of(graph)
    below = rooms_below(graph, rooms)
    try:
        level = levels(below)
    except CycleError as error:
        print("rooms that import each other: " + " -> ".join(error.args[1]), file=sys.stderr)
        return 1
    lines = {module: len(file_of(module).read_text().splitlines()) for module in graph.modules}
    print(f"{'level':>5} {'files':>5} {'lines':>6}  room and what it imports")
    for room in sorted(level, key=lambda name: (level[name], name)):
        files = [module for module in graph.modules if rooms[module] == room]
        total = sum(lines[module] for module in files)
        print(
            f"{level[room]:>5} {len(files):>5} {total:>6}  {room}: {' '.join(sorted(below[room]))}"
        )
    edges = sum(map(len, below.values()))
    print(f"\n{len(level)} rooms, {edges} edges between them, none upward, no cycle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
