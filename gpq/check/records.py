"""Reads what the processes of one shape wrote: steps of all ranks and attempts joined, facts, what
the library told.

A line that is cut short or not as it should be is left out: its process was ended there, and its
exit says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
from gpq_agent import wire

GRADIENT = "gradient of "  # begins the name of one, as the optimizer found it
MOST_BYTES = 1 << 28  # of one file
Sketch = list[float | None]
Kind = TypeVar("Kind")


class Facts(msgspec.Struct, frozen=True):
    """What the script is, as it said itself."""

    loader: bool
    size: int = 0  # examples of its data set
    batch: int = 0  # total
    batch_norms: list[str] = []
    half: bool = False  # weights are in half precision
    recurrent: bool = False  # dropout between layers of recurrent modules was taken out
    compiled: bool = False
    digest: str = ""  # this and what follows: of the program (gpq_agent.train.proof.Program)
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
    """A wire.CheckStep, or one of the four other lines."""

    facts: Facts | None = None
    suspected: Told | None = None
    end: int | None = None
    epsilon: float = 0.0
    outside: int = 0
    step: int | None = None
    attempt: int = 1
    epoch: int = 0
    epochs: int = 0
    indices: list[int] = []
    random: bool = False
    metrics: list[tuple[str, float, int]] = []
    rates: list[list[float]] = []
    tensors: dict[str, Sketch] = {}
    numbers: dict[str, float | None] = {}


@dataclass
class Step:
    """One optimizer step, of all replicas."""

    attempt: int = 1
    epoch: int = 0
    epochs: int = 0
    indices: list[int] = field(default_factory=list)  # ascending
    random: bool = False
    # (value, examples, rank)
    metrics: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    rates: list[list[float]] = field(default_factory=list)
    tensors: dict[str, Sketch] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)


@dataclass
class Run:
    """All of one shape. `steps[k]`: what the k-th step came to; of a step before a restart, what
    was restored of it."""

    steps: dict[int, Step] = field(default_factory=dict)
    facts: Facts | None = None
    outside: int = 0  # optimizer steps outside the loop, where that was all there was
    ended: bool = False  # as it was told, after the last step
    epsilon: float = 0.0  # of the coarsest half type that autocast computed in
    habits: dict[str, Told] = field(default_factory=dict)
    # what would be told in a job, and is tried here
    suspected: dict[str, Told] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def read(folder: Path, attempts: int) -> Run:
    """The run whose records lie in `folder`, with the reports of each attempt in a folder of its
    number."""
    run = Run()
    for attempt in range(1, attempts + 1):
        for path in sorted(folder.glob(f"{attempt}.*.jsonl")):
            rank = int(path.name.split(".")[1])
            for line in _lines(path, Line):
                _take(run, line, rank)
        for report in _lines(folder / str(attempt) / wire.REPORT, dict):
            _hear(run, report)
    for step in run.steps.values():
        step.indices.sort()
    return run


def _take(run: Run, line: Line, rank: int) -> None:
    run.facts = run.facts or line.facts
    run.ended = run.ended or line.end is not None
    run.outside = max(run.outside, line.outside)
    run.epsilon = max(run.epsilon, line.epsilon)
    if line.suspected is not None:
        run.suspected.setdefault(line.suspected.code, line.suspected)
    if line.step is None:
        return
    step = run.steps.setdefault(line.step, Step())
    step.indices += line.indices
    step.random = step.random or line.random
    for name, value, weight in line.metrics:
        step.metrics.setdefault(name, []).append((value, weight, rank))
    if rank == 0:
        step.attempt, step.epoch, step.epochs = line.attempt, line.epoch, line.epochs
        step.rates += line.rates
        # Of a step before a restart: what was restored, with the gradients that it was made with.
        gradients = {
            name: sketch for name, sketch in step.tensors.items() if name.startswith(GRADIENT)
        }
        step.tensors, step.numbers = {**gradients, **line.tensors}, line.numbers


def _hear(run: Run, report: dict[str, object]) -> None:
    if report.get("kind") == "notice":
        run.notices.append(str(report.get("message"))[:500])
    elif report.get("kind") == "habit":
        try:
            habit = msgspec.convert(report, Told)
        except msgspec.ValidationError:
            return
        run.habits.setdefault(habit.code, habit)


def _lines(path: Path, kind: type[Kind]) -> list[Kind]:
    """Of a file that may not be there."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MOST_BYTES)
    except OSError:
        return []
    decoder = msgspec.json.Decoder(kind)
    return [
        record for line in content.splitlines() if (record := _decoded(decoder, line)) is not None
    ]


def _decoded(decoder: msgspec.json.Decoder[Kind], line: bytes) -> Kind | None:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
