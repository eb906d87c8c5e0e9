"""The Policy protocol: who gets how many GPUs. Same snapshots, same answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId

# Policies that give every job exactly the GPUs that it asked for, of a range the least.
GANG = frozenset(
    {
        *("tiresias", "themis", "gavel", "gavel-max-min", "gavel-ftf", "gavel-makespan"),
        *("srtf", "backfill", "fifo"),
    }
)


class Policy(Protocol):
    """`allocate` names a feasible shape (shapes.feasible), or the nodes as well (Layout), for each
    job that ought to run now; absent = nothing now.

    A job that `mobility.is_fixed` must be given its present shape. A policy may keep what it
    computed between two calls (a warm start, time shares so far), never a fact: with a new instance
    it decides as if it had just been switched on.
    """

    @property
    def name(self) -> str: ...

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]: ...


def shape_of(allotment: Allotment) -> Shape:
    """The shape, whether or not the nodes are named."""
    return allotment if isinstance(allotment, Shape) else allotment.shape
