"""The Policy protocol: who gets how many GPUs. The same snapshots give the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId

# Policies that give every job exactly the GPUs that it asked for, or the fewest of a range.
GANG = frozenset(
    {
        *("tiresias", "themis", "gavel", "gavel-max-min", "gavel-ftf", "gavel-makespan"),
        *("srtf", "backfill", "fifo"),
    }
)


class Policy(Protocol):
    """`allocate` names a feasible shape (shapes.feasible), or also the servers (Layout), for each
    job that should run now. A job without one does not run now.

    A job that `mobility.is_fixed` must get its present shape. Between two calls a policy may keep
    what it computed (a warm start, past time shares), but never a fact. A new instance decides as
    if it had just been switched on.
    """

    @property
    def name(self) -> str: ...

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]: ...


def shape_of(allotment: Allotment) -> Shape:
    """The shape, whether or not the servers are named."""
    return allotment if isinstance(allotment, Shape) else allotment.shape
