"""The jobs of a simulation from a workload file: when each arrives, and which application it runs.
Refuses jobs that cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpq.core.model.units import Seconds
from gpq.sim.measurements.tables import Column, at
from gpq.sim.measurements.tables import read as read_table
from gpq.sim.measurements.trace import Traces

# Of the published workloads: what a policy may change. scale-gpus: the number of GPUs, not the
# batch.
CATEGORIES = ("adaptive", "scale-gpus", "rigid")

LATEST: Seconds = 1e12  # beyond this a floating-point clock loses its seconds

COLUMNS = (
    Column("name", text=True),
    Column("time", least=0.0),
    Column("application", text=True),
    Column("num_replicas", whole=True, least=1.0),
    Column("batch_size", whole=True, least=1.0),
    Column("category", text=True, default="adaptive"),
)


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


def read(path: str | Path) -> tuple[Arrival, ...]:
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


def check(arrivals: Sequence[Arrival], traces: Traces, path: str | Path) -> None:
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
