"""What is written down of a run, one JSON line each, and what its samples say about resizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

LEAST_SECONDS = 3.0  # of progress, for a speed


class Gain(msgspec.Struct, frozen=True):
    """One resize, with its goodput after / before.

    promised: as the model said at the last look before the resize.
    measured: as the job's progress showed. None: not known.
    """

    before: int  # GPUs
    after: int
    promised: float | None
    measured: float | None


class JobRecord(msgspec.Struct, frozen=True):
    name: str
    seconds: float  # from its submission to its end
    reached: bool  # its target
    gpu_hours: float
    restarts: int
    restart_gpu_hours: float
    gains: list[Gain] = []


class RunRecord(msgspec.Struct, frozen=True):
    policy: str
    repetition: int
    commit: str
    day: str
    load: float  # mean load of the machine in the minute before
    jobs: list[JobRecord] = []


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a running job. `progress`: 0 to 1. `curve`: modelled goodput by GPU count."""

    at: float
    attempt: int
    gpus: int
    progress: float | None
    curve: dict[int, float]


def gains(samples: Sequence[Sample]) -> list[Gain]:
    """The resizes among the looks at one job, in order."""
    attempts = [list(looks) for _, looks in groupby(samples, lambda look: look.attempt)]
    return [
        _gain(before, after)
        for before, after in pairwise(attempts)
        if before[-1].gpus != after[0].gpus
    ]


def _gain(before: Sequence[Sample], after: Sequence[Sample]) -> Gain:
    last, new = before[-1], after[0].gpus
    promised = measured = None
    if last.gpus in last.curve and new in last.curve:
        promised = last.curve[new] / last.curve[last.gpus]
    speeds = _speed(before), _speed(after)
    if speeds[0] and speeds[1]:
        measured = speeds[1] / speeds[0]
    return Gain(last.gpus, new, promised, measured)


def _speed(looks: Sequence[Sample]) -> float | None:
    """Progress per second from the first step of the attempt to its last look. Progress is in steps
    at the base batch size, so its speed is goodput. None: not measured for long enough."""
    points = [(look.at, look.progress) for look in looks if look.progress is not None]
    steps = [now for before, now in pairwise(points) if now[1] > before[1]]
    if not steps or steps[-1][0] - steps[0][0] < LEAST_SECONDS:
        return None
    return (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])


def read(file: Path) -> Iterator[RunRecord]:
    """The runs of the file, in the order in which they ended. Nothing if there is no file."""
    if file.exists():
        for line in file.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=RunRecord)


def append(file: Path, record: RunRecord) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        stream.write(msgspec.json.encode(record) + b"\n")
