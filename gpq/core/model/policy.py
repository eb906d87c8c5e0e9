"""What a policy is: who gets how many GPUs. The same snapshots give the same answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy

from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


class Policy(ABC):
    """`allocate` names a feasible shape (shapes.feasible), or also the servers (Layout), for each
    job that should run now. A job without one does not run now.

    A job that `mobility.is_fixed` must get its present shape. Between two calls a policy may keep
    what it computed (a warm start, past time shares), but never a fact. A new instance decides as
    if it had just been switched on.
    """

    name: str
    sentence = ""  # what `gpq config policies` says
    gang = False  # every job gets exactly the GPUs that it asked for
    # It ignores statistical efficiency, so a simulated job keeps its own batch size. In the daemon
    # gpq still tunes batch sizes.
    own_batch = False
    by_loss = False  # it reads loss curves, so a simulated job logs its loss every round
    _instances: dict[str, Policy] | None = None

    def aside(self, purpose: str) -> Policy:
        """The instance with the same settings that decides for `purpose`, such as on the jobs of
        one user. Its memory is its own."""
        instances, self._instances = self._instances or {}, None  # a copy has none
        if purpose not in instances:
            instances[purpose] = deepcopy(self)
        self._instances = instances
        return instances[purpose]

    @abstractmethod
    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]: ...


def shape_of(allotment: Allotment) -> Shape:
    """The shape, whether or not the servers are named."""
    return allotment if isinstance(allotment, Shape) else allotment.shape
