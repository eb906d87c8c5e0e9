"""On which servers an interpreter should wait for a job, besides those where it runs. Pure.

The agents of the servers where it runs know it themselves.
"""

from __future__ import annotations

from gpq.core.feasibility.mobility import settled_at
from gpq.core.feasibility.shapes import is_fit, nodes_up, usable
from gpq.core.model.actions import Launch, Warm
from gpq.core.model.jobs import TERMINAL, DesiredState, Job
from gpq.core.model.nodes import Node
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId


def standbys_due(snapshot: Snapshot, name: NodeId) -> list[Warm]:
    """What this server must know: each job that may be resized and could use one of its GPUs."""
    node = next((node for node in nodes_up(snapshot) if node.id == name), None)
    if node is None:
        return []
    orders = (_order(job, node, snapshot) for job in snapshot.jobs.values())
    return [order for order in orders if order is not None]


def _may_move(job: Job, snapshot: Snapshot) -> bool:
    return job.placement is None or snapshot.now >= settled_at(job, snapshot.config)


def _order(job: Job, node: Node, snapshot: Snapshot) -> Warm | None:
    if job.state in TERMINAL or job.wish is not DesiredState.RUN or not job.elastic:
        return None
    if node.id in job.nodes or job.spec.launcher or not _may_move(job, snapshot):
        return None
    if not is_fit(snapshot.checks, node.id, job.spec.environment):
        return None
    device = next((device.id for device in node.devices if usable(device, job.spec)), None)
    if device is None:
        return None
    placement = Placement(((node.id, (device,)),))
    attempt = job.next_attempt
    return Warm(job.id, attempt, Launch(job.id, attempt, job.spec, placement, BatchOrder()))
