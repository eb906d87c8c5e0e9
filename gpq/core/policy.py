"""The Policy protocol: who gets how many GPUs. Pure: same snapshot, same answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpq.core.models import JobId, Shape, Snapshot


class Policy(Protocol):
    """`allocate` names a feasible shape (shapes.feasible) for each job that ought to run now; absent = nothing now.

    A job that `shapes.is_fixed` must be given its present shape.
    """

    @property
    def name(self) -> str: ...

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]: ...
