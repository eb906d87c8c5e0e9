"""Reads what the processes of one shape wrote: steps of all ranks and attempts, facts, and what the
library reported.

It skips damaged and incomplete lines: their process was ended there, and its exit code says so.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
from gpq_agent import wire

GRADIENT = "gradient of "  # the name of a gradient, as the optimizer found it, starts with this
MOST_BYTES = 1 << 28  # per file
Sketch = list[float | None]
Kind = TypeVar("Kind")


class Facts(msgspec.Struct, frozen=True):
    """What the script says about itself."""

    loader: bool
    size: int = 0  # examples in its data set
    batch: int = 0  # total
    half: bool = False  # are weights in half precision?
    recurrent: bool = False  # was dropout between layers of recurrent modules turned off?
    compiled: bool = False
    digest: str = ""  # from here on: of the program (gpq_agent.train.program.Program)
    torch: str = ""
    library: str = ""
    files: dict[str, str] = {}  # path: SHA-256


class Told(msgspec.Struct, frozen=True):
    """A wire.Habit."""

    code: str
    freedoms: list[str]
    message: str
    cure: str


class Line(msgspec.Struct, frozen=True):
    """A wire.CheckStep, or one of the four other kinds of line."""

    facts: Facts | None = None
    suspected: Told | None = None
    end: int | None = None
    epsilon: float = 0.0
    outside: int = 0
    step: int | None = None
    indices: list[int] = []
    random: bool = False
    metrics: list[tuple[str, float, int]] = []
    rates: list[list[float]] = []
    tensors: dict[str, Sketch] = {}
    numbers: dict[str, float | None] = {}


@dataclass
class Step:
    """One optimizer step on all replicas."""

    indices: list[int] = field(default_factory=list)  # ascending
    random: bool = False
    # (value, examples, rank)
    metrics: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    rates: list[list[float]] = field(default_factory=list)
    tensors: dict[str, Sketch] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass
class Run:
    """One shape. `steps[k]`: the result of step k. For a step before a restart, what was restored
    of it."""

    steps: dict[int, Step] = field(default_factory=dict)
    facts: Facts | None = None
    outside: int = 0  # optimizer steps outside the loop, if there were no others
    ended: bool = False  # as reported, after the last step
    epsilon: float = 0.0  # epsilon of the coarsest half type that autocast used
    habits: dict[str, Told] = field(default_factory=dict)
    # habits that a job would report and that the check tests
    suspected: dict[str, Told] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    side_effects: list[str] = field(default_factory=list)  # notices about files and folders

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def read(folder: Path, attempts: int) -> Run:
    """The run whose records are in `folder`. The reports of each attempt are in a folder with its
    number."""
    run = Run()
    for attempt in range(1, attempts + 1):
        for path in sorted(folder.glob(f"{attempt}.*.jsonl")):
            rank = int(path.name.split(".")[1])
            for line in _lines(path, Line):
                _take(run, line, rank)
        for report in _lines(folder / str(attempt) / wire.REPORT, dict):
            if report.get("kind") == "notice":
                place = run.side_effects if report.get(wire.SIDE_EFFECT) else run.notices
                place.append(str(report.get("message"))[:500])
            elif report.get("kind") == "habit":
                with contextlib.suppress(msgspec.ValidationError):
                    habit = msgspec.convert(report, Told)
                    run.habits.setdefault(habit.code, habit)
    for step in run.steps.values():
        step.indices.sort()
    return run


def _take(run: Run, line: Line, rank: int) -> None:
    run.facts = run.facts or line.facts
    run.ended |= line.end is not None
    run.outside = max(run.outside, line.outside)
    run.epsilon = max(run.epsilon, line.epsilon)
    if line.suspected is not None:
        run.suspected.setdefault(line.suspected.code, line.suspected)
    if line.step is None:
        return
    step = run.steps.setdefault(line.step, Step())
    step.indices += line.indices
    step.random |= line.random
    for name, value, weight in line.metrics:
        step.metrics.setdefault(name, []).append((value, weight, rank))
    if rank == 0:
        step.rates += line.rates
        # For a step before a restart: what was restored, with its original gradients.
        gradients = {
            name: sketch for name, sketch in step.tensors.items() if name.startswith(GRADIENT)
        }
        step.tensors, step.numbers = {**gradients, **line.tensors}, line.numbers


def _lines(path: Path, kind: type[Kind]) -> list[Kind]:
    """The lines of a file that may not exist."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MOST_BYTES)
    except OSError:
        return []
    decoder = msgspec.json.Decoder(kind)
    records = []
    for line in content.splitlines():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            records.append(decoder.decode(line))
    return records
