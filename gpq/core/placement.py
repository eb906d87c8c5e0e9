"""place(): allocation -> exactly which GPUs. Never moves what need not move; at most one multi-node job per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpq.core.models import DeviceId, Job, JobId, NodeId, Placement, Shape, Snapshot
from gpq.core.shapes import is_fixed, nodes_up, supply, usable

Free = dict[NodeId, list[DeviceId]]


@dataclass
class _Board:
    """Devices not yet given in this round, and which nodes already carry a multi-node job."""

    free: Free
    spanned: set[NodeId] = field(default_factory=set)

    def take(self, placement: Placement) -> None:
        for node, devices in placement.parts:
            self.free[node] = [device for device in self.free.get(node, []) if device not in devices]
        if len(placement.parts) > 1:
            self.spanned.update(node for node, _ in placement.parts)

    def give(self, placement: Placement) -> None:
        for node, devices in placement.parts:
            self.free[node] = sorted({*self.free.get(node, []), *devices})


def place(snapshot: Snapshot, allocation: Mapping[JobId, Shape]) -> dict[JobId, Placement]:
    """Placements for as many of the allocated jobs as fit; a job without one waits for the next round."""
    board = _Board({node.id: [device.id for device in node.devices] for node in nodes_up(snapshot)})
    placed: dict[JobId, Placement] = {}
    for job in snapshot.jobs.values():
        wanted = allocation.get(job.id)
        if job.placement is not None and (is_fixed(job, snapshot) or _same(job.placement, wanted)):
            placed[job.id] = job.placement
            board.take(job.placement)
    rest = [snapshot.jobs[name] for name in allocation if name not in placed and name in snapshot.jobs]
    rest.sort(key=lambda job: (-allocation[job.id].replicas, -job.spec.priority, job.id))
    while rest:
        job = rest.pop(0)
        found = _find(snapshot, job, allocation[job.id], board)
        if found is None:
            moved = _make_room(snapshot, job, allocation[job.id], board, placed)
            rest.extend(moved)
            found = _find(snapshot, job, allocation[job.id], board)
        if found is not None:
            placed[job.id] = found
            board.take(found)
    return placed


def _same(placement: Placement, wanted: Shape | None) -> bool:
    return wanted is not None and (wanted.replicas, wanted.nodes) == (placement.replicas, len(placement.parts))


def _eligible(snapshot: Snapshot, job: Job, board: _Board) -> Free:
    offered = supply(snapshot, job)
    return {
        node: [device for device in free if device in offered.get(node, ())]
        for node, free in sorted(board.free.items())
    }


def _find(snapshot: Snapshot, job: Job, shape: Shape, board: _Board) -> Placement | None:
    """Own devices first, then those that nobody holds now, then the fullest node that still fits (best fit)."""
    free = _eligible(snapshot, job, board)
    own = job.placement.devices if job.placement else frozenset()
    busy = {device for other in snapshot.jobs.values() if other.placement for device in other.placement.devices}
    order = {device.id: position for node in snapshot.nodes.values() for position, device in enumerate(node.devices)}

    def preferred(node: NodeId) -> list[DeviceId]:
        return sorted(free[node], key=lambda d: ((node, d) not in own, (node, d) in busy, order.get(d, 0)))

    if shape.nodes == 1:
        fitting = [node for node in free if len(free[node]) >= shape.replicas]
        if not fitting:
            return None
        at_once = {node: sum((node, d) not in busy or (node, d) in own for d in free[node]) for node in fitting}
        best = min(
            fitting,
            key=lambda n: (
                not any(node == n for node, _ in own),
                at_once[n] < shape.replicas,
                len(free[n]),
                n,
            ),
        )
        return Placement(((best, _sorted(preferred(best)[: shape.replicas], order)),))
    open_nodes = [node for node in free if node not in board.spanned and free[node]]
    open_nodes.sort(key=lambda n: (-len(free[n]), not any(node == n for node, _ in own), n))
    parts: list[tuple[NodeId, tuple[DeviceId, ...]]] = []
    missing = shape.replicas
    for node in open_nodes[: shape.nodes]:
        chosen = preferred(node)[:missing]
        parts.append((node, _sorted(chosen, order)))
        missing -= len(chosen)
        if missing == 0:
            break
    if missing or len(parts) != shape.nodes:
        return None
    return Placement(tuple(sorted(parts)))


def _sorted(devices: list[DeviceId], order: Mapping[DeviceId, int]) -> tuple[DeviceId, ...]:
    return tuple(sorted(devices, key=lambda device: (order.get(device, 0), device)))


def _make_room(snapshot: Snapshot, job: Job, shape: Shape, board: _Board, placed: dict[JobId, Placement]) -> list[Job]:
    """Free enough of one node for a single-node shape by unplacing smaller movable jobs that keep their size.

    They are placed again after it, elsewhere; a move costs them a restart, so it is done only when nothing else fits
    and the fewest devices move.
    """
    if shape.nodes != 1:
        return []
    free = _eligible(snapshot, job, board)
    best: tuple[int, NodeId, list[Job]] | None = None
    for node in nodes_up(snapshot):
        missing = shape.replicas - len(free.get(node.id, []))
        fits = {device.id for device in node.devices if usable(device, job.spec)}
        movers: list[Job] = []
        for other in sorted((snapshot.jobs[name] for name in placed), key=lambda other: (other.replicas, other.id)):
            parts = placed[other.id].parts
            if missing <= 0:
                break
            if (
                len(parts) == 1
                and parts[0][0] == node.id
                and other.placement == placed[other.id]
                and not is_fixed(other, snapshot)
                and len(parts[0][1]) < shape.replicas
                and set(parts[0][1]) <= fits
            ):
                movers.append(other)
                missing -= len(parts[0][1])
        cost = sum(other.replicas for other in movers)
        elsewhere = sum(len(devices) for name, devices in board.free.items() if name != node.id)
        if missing <= 0 and movers and elsewhere >= cost and (best is None or (cost, node.id) < best[:2]):
            best = (cost, node.id, movers)
    if best is None:
        return []
    for other in best[2]:
        board.give(placed.pop(other.id))
    return best[2]
