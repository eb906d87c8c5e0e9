"""What a simulated job would really do, regardless of estimates: the protocol, and one job to come.
Policies never see it. They see only what jobs report and, if they ask for an oracle,
`Snapshot.oracles`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpq.core.model.profile import Habit
from gpq.core.model.units import Seconds


class Truth(Protocol):
    """One program: its limits, its true times and its true gradient statistics.

    Batches in examples, times in seconds, progress in steps of the base batch.
    """

    @property
    def name(self) -> str: ...
    @property
    def base_batch(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def fixed_batch(self) -> int:
        """The only batch size that it trains with. 0: any from base to max."""

    @property
    def most_replicas(self) -> int:
        """0: as many as its batch allows."""

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        """(least, most) micro-batch."""

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        """(optimiser step without accumulation, the part of it that is synchronisation) on `counts`
        GPUs by node.

        Raises NotMeasured (timings.py) if the data do not say.
        """

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        """(least, most) micro-batch within the limits for which `times` has an answer on these
        GPUs."""

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """(|E g|^2, tr(Cov g) / base batch): of the gradient of one base batch, during `epoch`
        (0-based)."""

    def progress(self, epoch: int) -> float:
        """Steps at the base batch size done when `epoch` epochs are. Strictly increasing, 0 at
        0."""

    def iterations(self, total_batch: float, epoch: int) -> float:
        """Optimiser steps done at that batch size when `epoch` epochs are."""

    def loss(self, total_batch: float, progress: float) -> float:
        """Training loss, falling, scaled to 1 at the start."""


@dataclass(frozen=True, slots=True)
class Task:
    """One job to come."""

    name: str
    at: Seconds
    truth: Truth
    replicas: int = 1  # requested, and what policies without elasticity give it
    batch_size: int = 0  # requested, and what policies without adaptive batch sizes use
    user: str = "user"
    gpu_type: str = ""
    restart: Seconds = 30.0  # each start or move: GPUs held, no progress
    rigid: bool = False  # exactly `replicas`, under every policy
    # true progress relative to measured steps (the calibration of an artifact)
    slowdown: float = 1.0
    habits: tuple[Habit, ...] = ()  # habits of its loop, known when it arrives
    lies: tuple[str, ...] = ()  # what it reports or asks untruly (lies.KINDS)

    def has_lost(self, freedom: str) -> bool:
        return any(freedom in habit.freedoms for habit in self.habits)
