"""Where the jobs of a simulated run come from: a workload file on public measurements, with the
costs of an artifact. Refuses jobs that cannot run.

A source is small and travels between processes. Each process reads the measurements itself, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Protocol

from gpq.core.model.units import Seconds
from gpq.lab.measurements.ground_truth import Task, Truth
from gpq.lab.measurements.tables import Column, at
from gpq.lab.measurements.tables import read as read_table
from gpq.lab.measurements.trace import Traces

# Of the published workloads: what a policy may change. scale-gpus: the number of GPUs, not the
# batch.
CATEGORIES = ("adaptive", "scale-gpus", "rigid")
SPLIT = "jobs"  # the lie of a member who submits each job as PARTS jobs that share its work
PARTS = 4
LATEST: Seconds = 1e12  # beyond this a floating-point clock loses its seconds
COLUMNS = (
    Column("name", text=True),
    Column("time", least=0.0),
    Column("application", text=True),
    Column("num_replicas", whole=True, least=1.0),
    Column("batch_size", whole=True, least=1.0),
    Column("category", text=True, default="adaptive"),
)


class Source(Protocol):
    @property
    def name(self) -> str: ...

    def tasks(self) -> Sequence[Task]:
        """The same in every process. Raises UsageError for unreadable input."""


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
class Member:
    """Who submits jobs. What they report or ask is untrue as `lies` say (lies.KINDS)."""

    name: str
    lies: tuple[str, ...] = ()

    @property
    def parts(self) -> int:
        """Jobs that each of their jobs is submitted as."""
        return PARTS if SPLIT in self.lies else 1


EVERYBODY = (Member("user"),)


@dataclass(frozen=True, slots=True)
class Published:
    """A workload file, and the folder of measurements that its applications are in. Its jobs are
    dealt to the members in turn, by arrival."""

    name: str
    path: str
    traces: str
    charges: Charges = OSDI21
    members: tuple[Member, ...] = EVERYBODY

    def tasks(self) -> tuple[Task, ...]:
        """Errors name file and row."""
        traces = _traces(self.traces)
        check_workload(read_workload(self.path), traces, self.path)
        charges, tasks = self.charges, []
        for name, arrival, member in self._jobs():
            application = arrival.application
            batch = 0 if arrival.category == "adaptive" else arrival.batch_size
            tasks.append(
                Task(
                    name,
                    arrival.at,
                    _truth(self.traces, application, batch, member.parts),
                    arrival.replicas,
                    arrival.batch_size,
                    member.name,
                    restart=dict(charges.restarts).get(application, charges.restart),
                    rigid=arrival.category == "rigid",
                    slowdown=dict(charges.slowdowns).get(application, charges.slowdown),
                    lies=member.lies,
                )
            )
        return tuple(tasks)

    def rows(self) -> dict[str, int]:
        """The row of the file for each job."""
        return {name: arrival.row for name, arrival, _ in self._jobs()}

    def _jobs(self) -> Iterator[tuple[str, Arrival, Member]]:
        """The jobs by name, with the arrival that each is of, or is a part of."""
        for arrival, member in zip(read_workload(self.path), cycle(self.members), strict=False):
            for part in range(1, member.parts + 1):
                name = f"{arrival.name}/{part}" if member.parts > 1 else arrival.name
                yield name, arrival, member


@lru_cache(maxsize=4)
def _traces(folder: str) -> Traces:
    return Traces(folder)


@lru_cache(maxsize=1024)
def _truth(folder: str, application: str, batch: int, parts: int) -> Truth:
    """One of `parts` equal shares of an application, at one batch size (0: any)."""
    truth = _traces(folder).application(application)
    if batch and not truth.fixed_batch:
        truth = truth.with_batch(batch)
    return truth.share(parts) if parts > 1 else truth


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job to come. `replicas` and `batch_size` are what its user would ask for. Adaptive
    policies choose for themselves."""

    name: str
    at: Seconds  # since the start
    application: str
    replicas: int
    batch_size: int  # total
    category: str = "adaptive"
    row: int = field(default=0, compare=False)  # of the file, for errors


def read_workload(path: str | Path) -> tuple[Arrival, ...]:
    """Sorted by time. Jobs with the same time keep the order of the file."""
    table = read_table(path, COLUMNS)
    rows_by_name: dict[str, int] = {}
    arrivals: list[Arrival] = []
    for i, row in enumerate(table.rows):
        name, category = table.texts["name"][i], table.texts["category"][i]
        if name in rows_by_name:
            raise table.wrong(i, f"the name {name} is already used in row {rows_by_name[name]}")
        if table.numbers["time"][i] > LATEST:
            raise table.wrong(
                i, f"time is {table.numbers['time'][i]:g}, must be at most {LATEST:g} s"
            )
        if category not in CATEGORIES:
            raise table.wrong(i, f"category is {category}, must be one of {', '.join(CATEGORIES)}")
        rows_by_name[name] = row
        arrivals.append(
            Arrival(
                name=name,
                at=float(table.numbers["time"][i]),
                application=table.texts["application"][i],
                replicas=int(table.numbers["num_replicas"][i]),
                batch_size=int(table.numbers["batch_size"][i]),
                category=category,
                row=row,
            )
        )
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at))


def check_workload(arrivals: Sequence[Arrival], traces: Traces, path: str | Path) -> None:
    """Can every job run on the measurements? Raises UsageError about the first in the file that
    cannot."""
    path = Path(path)
    for arrival in sorted(arrivals, key=lambda arrival: arrival.row):
        if arrival.application not in traces.names:
            hint = f"{traces.folder} has {', '.join(traces.names)}"
            raise at(
                path,
                arrival.row,
                f"there are no measurements of application {arrival.application}",
                hint,
            )
        application = traces.application(arrival.application)
        low, high = application.base_batch, application.max_batch
        if not low <= arrival.batch_size <= high:
            problem = (
                f"batch_size is {arrival.batch_size}, {application.name} was measured from {low} to"
                f" {high}"
            )
            raise at(path, arrival.row, problem)
