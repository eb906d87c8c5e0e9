"""Where the jobs of a simulated run come from: a workload file on public measurements, with the
costs of an artifact.

A source is small and travels between processes. Each process reads the measurements itself, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from gpq.core.model.units import Seconds
from gpq.sim.measurements import workload
from gpq.sim.measurements.ground_truth import Task, Truth
from gpq.sim.measurements.trace import Traces


class Source(Protocol):
    @property
    def name(self) -> str: ...

    def tasks(self) -> Sequence[Task]:
        """The same in every process. Raises UsageError for unreadable input."""
        ...


@dataclass(frozen=True, slots=True)
class Charges:
    """By application: seconds of each start or move, and how much slower true progress is than the
    measured steps."""

    restarts: tuple[tuple[str, Seconds], ...] = ()
    restart: Seconds = 30.0  # of all others
    slowdowns: tuple[tuple[str, float], ...] = ()
    slowdown: float = 1.0  # of all others


OSDI21 = Charges()
# Of the simulator in the Sia artifact (SOSP'23): restart times by application, and its calibration
# by a real cluster.
SIA = Charges(
    restarts=(
        ("bert", 120.0),
        ("cifar10", 50.0),
        ("deepspeech2", 25.0),
        ("imagenet", 250.0),
        ("ncf", 15.0),
        ("yolov3", 80.0),
    ),
    slowdowns=(("cifar10", 1.8), ("ncf", 1.5)),
    slowdown=1.2,
)


@dataclass(frozen=True, slots=True)
class Published:
    """A workload file, and the folder of measurements that its applications are in."""

    name: str
    path: str
    traces: str
    charges: Charges = OSDI21

    def tasks(self) -> tuple[Task, ...]:
        """Errors name file and row."""
        traces = _traces(self.traces)
        arrivals = workload.read(self.path)
        workload.check(arrivals, traces, self.path)
        return tuple(self._task(arrival, traces) for arrival in arrivals)

    def rows(self) -> dict[str, int]:
        """The row of the file for each job."""
        return {arrival.name: arrival.row for arrival in workload.read(self.path)}

    def _task(self, arrival: workload.Arrival, traces: Traces) -> Task:
        charges, name = self.charges, arrival.application
        truth: Truth = traces.application(name)
        if arrival.category != "adaptive" and not truth.fixed_batch:
            truth = _one_batch(self.traces, name, arrival.batch_size)
        return Task(
            arrival.name,
            arrival.at,
            truth,
            arrival.replicas,
            arrival.batch_size,
            restart=dict(charges.restarts).get(name, charges.restart),
            rigid=arrival.category == "rigid",
            slowdown=dict(charges.slowdowns).get(name, charges.slowdown),
        )


@lru_cache(maxsize=4)
def _traces(folder: str) -> Traces:
    return Traces(folder)


@lru_cache(maxsize=1024)
def _one_batch(folder: str, application: str, batch: int) -> Truth:
    return KeptBatch(_traces(folder).application(application), batch)


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """An application that trains with one batch size under every policy (categories `scale-gpus`
    and `rigid`)."""

    application: Truth
    fixed_batch: int

    @property
    def name(self) -> str:
        return self.application.name

    @property
    def base_batch(self) -> int:
        return self.application.base_batch

    @property
    def max_batch(self) -> int:
        return self.application.max_batch

    @property
    def epochs(self) -> int:
        return self.application.epochs

    @property
    def most_replicas(self) -> int:
        return self.application.most_replicas

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        return self.application.limits(gpu_type)

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        return self.application.measured(counts, gpu_type)

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        return self.application.times(counts, atomic, gpu_type)

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        return self.application.stats(total_batch, epoch)

    def progress(self, epoch: int) -> float:
        return self.application.progress(epoch)

    def iterations(self, total_batch: float, epoch: int) -> float:
        return self.application.iterations(total_batch, epoch)

    def loss(self, total_batch: float, progress: float) -> float:
        return self.application.loss(total_batch, progress)
