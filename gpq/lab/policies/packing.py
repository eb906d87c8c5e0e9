"""Nodes for shapes, the largest first. `place` can honour every shape that gets nodes here. The
policy chooses the shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpq.core.feasibility.mobility import is_leaving
from gpq.core.feasibility.shapes import shape_on
from gpq.core.model.jobs import Allotment, Job, Level
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import Counts, FreeDevices, placeable
from gpq.policies.shared.eligible import Contest


def pack(
    snapshot: Snapshot,
    fixed_shapes: Mapping[JobId, Shape],
    shapes: Mapping[JobId, Shape],
    *,
    loose: bool = False,
) -> dict[JobId, Allotment]:
    """`fixed_shapes`, and nodes for as many of `shapes` as possible. `place` can honour all of
    this. A job that is missing found no nodes.

    The largest shapes come first, and among equals those that stay where they are. The others go
    where they displace nobody, otherwise where they displace fewest, to the fullest node that still
    fits (best fit). So shapes of powers of two on equal nodes always find room. `loose`: a script
    may spread over more nodes than its shape says.
    """
    board = FreeDevices(snapshot, fixed_shapes)
    stayers = {
        name
        for name, shape in shapes.items()
        if _stays(snapshot, snapshot.jobs[name], shape, loose)
    }
    reservations = np.zeros(len(board.nodes), dtype=np.int64)
    for name in stayers:
        _reserve(board, snapshot.jobs[name], reservations, 1)
    allotments: dict[JobId, Allotment] = {name: fixed_shapes[name] for name in sorted(fixed_shapes)}
    for name in sorted(
        shapes,
        key=lambda n: (-shapes[n].replicas, n not in stayers, -snapshot.jobs[n].spec.priority, n),
    ):
        job, shape = snapshot.jobs[name], shapes[name]
        layout = None
        if name in stayers:
            _reserve(board, job, reservations, -1)
            layout = _where_it_is(board, job, shape)
        layout = layout or _seat(board, job, shape, reservations, loose)
        if layout is None:
            continue
        placement = board.find(job, layout)
        if placement is not None:
            board.take(placement)
            allotments[name] = layout
    return placeable(snapshot, allotments)


def pack_in_turns(
    snapshot: Snapshot, round_: Contest, turns: Sequence[tuple[JobId, Shape]]
) -> dict[JobId, Allotment]:
    """Gangs take turns while devices of the type are left. A gang that finds no nodes is skipped in
    that turn."""
    skips: set[int] = set()
    while True:
        free = dict(round_.capacity)
        bids: dict[JobId, tuple[int, Shape]] = {}
        for turn, (name, shape) in enumerate(turns):
            if (
                turn not in skips
                and name not in bids
                and shape.replicas <= free.get(shape.gpu_type, 0)
            ):
                bids[name] = (turn, shape)
                free[shape.gpu_type] -= shape.replicas
        allotments = pack(
            snapshot,
            round_.fixed_shapes,
            {name: shape for name, (_, shape) in bids.items()},
            loose=True,
        )
        misfits = [turn for name, (turn, _) in bids.items() if name not in allotments]
        if not misfits:
            return allotments
        skips.add(max(misfits))


def _stays(snapshot: Snapshot, job: Job, shape: Shape, loose: bool) -> bool:
    """Does it have this shape, and will it keep it?"""
    if job.placement is None or is_leaving(job, snapshot):
        return False
    current_shape = shape_on(job.placement, snapshot)
    return (current_shape.replicas, current_shape.gpu_type) == (
        shape.replicas,
        shape.gpu_type,
    ) and (loose or current_shape.nodes == shape.nodes)


def _reserve(board: FreeDevices, job: Job, reservations: Counts, sign: int) -> None:
    for node, devices in job.parts:
        at = board.index.get(node)
        if at is not None:
            reservations[at] += sign * len(devices)


def _where_it_is(board: FreeDevices, job: Job, shape: Shape) -> Layout | None:
    """Its own nodes, if no other job got any of its devices."""
    assert job.placement is not None
    for node, devices in job.placement.parts:
        at = board.index.get(node)
        if at is None or any(
            board.position[at].get(device, -1) not in board.free[at] for device in devices
        ):
            return None
    return Layout(job.placement.counts, shape.gpu_type)


def _seat(
    board: FreeDevices, job: Job, shape: Shape, reservations: Counts, loose: bool
) -> Layout | None:
    free = board.counts(board.kind(job, shape.gpu_type))
    unclaimed = np.maximum(free - reservations, 0)
    loose = loose and job.spec.level is Level.SCRIPT
    for room in (unclaimed, free):
        parts: list[tuple[int, int]] | None = None
        hosts = np.flatnonzero(room >= shape.replicas)
        if shape.nodes == 1 and len(hosts):
            evictions = np.maximum(shape.replicas - unclaimed[hosts], 0)
            best = hosts[np.lexsort((hosts, room[hosts], evictions))[0]]
            parts = [(int(best), shape.replicas)]
        if parts is None and (shape.nodes > 1 or loose):
            parts = _largest_nodes(room, unclaimed, shape, loose)
            is_whole = sum(count for _, count in parts) == shape.replicas
            if not is_whole or (len(parts) != shape.nodes and not loose):
                parts = None
        if parts is not None:
            counts = sorted((board.nodes[at].id, count) for at, count in parts)
            return Layout(tuple(counts), shape.gpu_type)
    return None


def _largest_nodes(
    room: Counts, unclaimed: Counts, shape: Shape, loose: bool
) -> list[tuple[int, int]]:
    """The largest nodes first. The last piece goes to the fullest node that still fits."""
    remainder, parts = shape.replicas, list[tuple[int, int]]()
    order = np.lexsort((np.arange(len(room)), -unclaimed, -room)).tolist()
    for rank, at in enumerate(order):
        if remainder == 0 or room[at] == 0 or (not loose and len(parts) == shape.nodes):
            break
        if room[at] >= remainder and (loose or len(parts) + 1 == shape.nodes):
            hosts = [node for node in order[rank:] if room[node] >= remainder]
            fullest = min(hosts, key=lambda node: (room[node], -unclaimed[node], node))
            parts.append((fullest, remainder))
            break
        parts.append((at, min(remainder, int(room[at]))))
        remainder -= parts[-1][1]
    return parts
