"""Room in a round: who contends for which devices, and nodes for shapes such that `place` can honour every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpq.core.board import Board, Counts
from gpq.core.models import (
    HOLDS_DEVICES,
    Allotment,
    DeviceId,
    Job,
    JobId,
    JobState,
    Layout,
    Level,
    NodeId,
    Placement,
    Shape,
    Snapshot,
    Wish,
)
from gpq.core.placement import place
from gpq.core.shapes import Supply, by_type, feasible, gpu_range, held_by, is_fixed, is_leaving, is_mixed, supply


@dataclass(frozen=True, slots=True)
class Contest:
    """`kept`: jobs that keep what they have. `jobs`: those to decide on, by id, with the shape that each has (`current`),
    what it could use (`offers`, by type: `parts`), and what there is for all (`capacity`: devices by type)."""

    kept: Mapping[JobId, Shape]
    jobs: tuple[Job, ...]
    current: Mapping[JobId, Shape | None]  # of one on the way to another shape, that one
    offers: Mapping[JobId, Supply]
    parts: Mapping[JobId, Mapping[str, Supply]]
    capacity: Mapping[str, int]


def contest(snapshot: Snapshot) -> Contest:
    """Fixed jobs, and those that are to end, keep; running ones and waiting ones that may start contend."""
    mixed = is_mixed(snapshot)
    kept = {
        name: _shape(job.placement, mixed)
        for name, job in sorted(snapshot.jobs.items())
        if job.placement is not None and (job.wish is not Wish.RUN or is_fixed(job, snapshot))
    }
    taken = {device: name for device, name in held_by(snapshot).items() if name in kept}
    jobs = tuple(job for name, job in sorted(snapshot.jobs.items()) if name not in kept and _ready(job, snapshot))
    kinds = {(job.spec.gpu_type, job.spec.min_gpu_memory_mib): job for job in jobs}
    offer_of = {kind: supply(snapshot, job, taken) for kind, job in kinds.items()}
    parts_of = {kind: by_type(offer, snapshot) for kind, offer in offer_of.items()}
    devices: dict[str, set[tuple[NodeId, DeviceId]]] = {}
    for parts in parts_of.values():
        for name, part in parts.items():
            devices.setdefault(name, set()).update((node, device) for node, ids in part.items() for device in ids)
    for job in jobs:  # it may stay on a device on which nothing new starts
        if job.placement is not None:
            name = _shape(job.placement, mixed).gpu_type
            devices.setdefault(name, set()).update(job.placement.devices)
    kind_of = {job.id: (job.spec.gpu_type, job.spec.min_gpu_memory_mib) for job in jobs}
    return Contest(
        kept,
        jobs,
        {
            job.id: _shape(job.placement, mixed)
            if job.placement is not None and not is_leaving(job, snapshot)
            else job.target
            for job in jobs
        },
        {name: offer_of[kind] for name, kind in kind_of.items()},
        {name: parts_of[kind] for name, kind in kind_of.items()},
        {name: len(devices[name]) for name in sorted(devices)},
    )


def _ready(job: Job, snapshot: Snapshot) -> bool:
    if job.state in HOLDS_DEVICES:
        return True
    return job.state is JobState.PENDING and job.wish is Wish.RUN and snapshot.now >= job.not_before


def _shape(placement: Placement, mixed: bool) -> Shape:
    """`shapes.shape_on`, without a look at all devices each time."""
    return Shape(placement.replicas, len(placement.parts), placement.gpu_type if mixed else "")


def configurations(snapshot: Snapshot, round_: Contest) -> dict[JobId, list[Shape]]:
    """Powers of two within a node, whole nodes, and the least that the job may have: about N + log2 R of a type."""
    known: dict[tuple[object, ...], list[Shape]] = {}
    found = {}
    for job in round_.jobs:
        # Alike for all jobs with the same devices and the same range of sizes.
        alike = (job.spec.gpu_type, job.spec.min_gpu_memory_mib, job.spec.level, gpu_range(job, 1 << 30))
        if alike not in known:
            whole = {name: {len(ids) for ids in part.values()} for name, part in round_.parts[job.id].items()}
            known[alike] = [
                shape
                for shape in feasible(job, snapshot, round_.offers[job.id])
                if shape.nodes > 1
                or shape.replicas & (shape.replicas - 1) == 0
                or shape.replicas == job.spec.min_gpus
                or shape.replicas in whole[shape.gpu_type]
            ]
        found[job.id] = known[alike]
    return found


def fewest_nodes(replicas: int, offer: Supply, level: Level) -> int | None:
    """Over how many of these nodes so many replicas come at least, None where they do not fit. Scripts alone span nodes."""
    left = replicas
    for number, count in enumerate(sorted((len(ids) for ids in offer.values()), reverse=True), 1):
        left -= count
        if left <= 0:
            return number
        if level is not Level.SCRIPT:
            break
    return None


def pack(
    snapshot: Snapshot, kept: Mapping[JobId, Shape], wanted: Mapping[JobId, Shape], *, loose: bool = False
) -> dict[JobId, Allotment]:
    """`kept`, and nodes for as many of `wanted` as possible: all of this `place` will honour; who is left out found none.

    The largest first, and of equal ones those first that stay where they are. The others go where they drive nobody away,
    else where they drive away fewest, to the fullest node that still fits (best fit): shapes of powers of two on equal
    nodes thus always find room. `loose`: a script may come to lie on more nodes than its shape says.
    """
    board = Board(snapshot)
    for name in sorted(kept):
        placement = snapshot.jobs[name].placement
        if placement is not None:
            board.take(placement)
    mixed = is_mixed(snapshot)
    stay = [
        name
        for name in sorted(wanted)
        if not is_leaving(snapshot.jobs[name], snapshot) and _has(snapshot.jobs[name], wanted[name], mixed, loose)
    ]
    reserved = np.zeros(len(board.nodes), dtype=np.int64)
    for name in stay:
        _reserve(board, snapshot.jobs[name], reserved, 1)
    found: dict[JobId, Allotment] = {name: kept[name] for name in sorted(kept)}
    staying = set(stay)
    for name in sorted(
        wanted, key=lambda n: (-wanted[n].replicas, n not in staying, -snapshot.jobs[n].spec.priority, n)
    ):
        job, shape = snapshot.jobs[name], wanted[name]
        layout = None
        if name in staying:
            _reserve(board, job, reserved, -1)
            layout = _where_it_is(board, job, shape)
        layout = layout or _seat(board, job, shape, reserved, loose)
        placement = board.find(job, layout) if layout is not None else None
        if layout is not None and placement is not None:
            board.take(placement)
            found[name] = layout
    return _honoured(snapshot, found)


def seated(snapshot: Snapshot, round_: Contest, turns: Sequence[tuple[JobId, Shape]]) -> dict[JobId, Allotment]:
    """Gangs in their turns while devices of the type are left; who finds no nodes there is passed over in this turn."""
    passed: set[int] = set()
    while True:
        left = dict(round_.capacity)
        wanted: dict[JobId, tuple[int, Shape]] = {}
        for turn, (name, shape) in enumerate(turns):
            if turn not in passed and name not in wanted and shape.replicas <= left.get(shape.gpu_type, 0):
                wanted[name] = (turn, shape)
                left[shape.gpu_type] -= shape.replicas
        found = pack(snapshot, round_.kept, {name: shape for name, (_, shape) in wanted.items()}, loose=True)
        lost = [turn for name, (turn, _) in wanted.items() if name not in found]
        if not lost:
            return found
        passed.add(max(lost))


def _honoured(snapshot: Snapshot, found: dict[JobId, Allotment]) -> dict[JobId, Allotment]:
    """Less what `place` has no room for after all: within a node it may hand out the devices in another order."""
    while True:
        placed = place(snapshot, found)
        lost = [name for name in found if name not in placed]
        if not lost:
            return found
        for name in lost:
            del found[name]


def _has(job: Job, shape: Shape, mixed: bool, loose: bool) -> bool:
    if job.placement is None:
        return False
    here = _shape(job.placement, mixed)
    return (here.replicas, here.gpu_type) == (shape.replicas, shape.gpu_type) and (loose or here.nodes == shape.nodes)


def _reserve(board: Board, job: Job, reserved: Counts, sign: int) -> None:
    for node, devices in job.placement.parts if job.placement else ():
        at = board.index.get(node)
        if at is not None:
            reserved[at] += sign * len(devices)


def _where_it_is(board: Board, job: Job, shape: Shape) -> Layout | None:
    """Its own nodes, if none of its devices is given."""
    assert job.placement is not None
    for node, devices in job.placement.parts:
        at = board.index.get(node)
        if at is None or any(board.position[at].get(device, -1) not in board.free[at] for device in devices):
            return None
    return Layout(tuple((node, len(devices)) for node, devices in job.placement.parts), shape.gpu_type)


def _seat(board: Board, job: Job, shape: Shape, reserved: Counts, loose: bool) -> Layout | None:
    free = board.counts(board.kind(job.spec, shape.gpu_type))
    unclaimed = np.maximum(free - reserved, 0)
    loose = loose and job.spec.level is Level.SCRIPT
    for room in (unclaimed, free):
        parts = _one_node(room, unclaimed, shape) if shape.nodes == 1 else None
        if parts is None and (shape.nodes > 1 or loose):
            parts = _several_nodes(room, unclaimed, shape, loose)
        if parts is not None:
            named = sorted((board.nodes[at].id, count) for at, count in parts)
            return Layout(tuple(named), shape.gpu_type)
    return None


def _one_node(room: Counts, unclaimed: Counts, shape: Shape) -> list[tuple[int, int]] | None:
    fitting = np.flatnonzero(room >= shape.replicas)
    if not len(fitting):
        return None
    driven_out = np.maximum(shape.replicas - unclaimed[fitting], 0)
    return [(int(fitting[np.lexsort((fitting, room[fitting], driven_out))[0]]), shape.replicas)]


def _several_nodes(room: Counts, unclaimed: Counts, shape: Shape, loose: bool) -> list[tuple[int, int]] | None:
    """The largest nodes first; the last piece to the fullest node that still fits. Exactly `shape.nodes` unless loose."""
    left, parts = shape.replicas, list[tuple[int, int]]()
    order = np.lexsort((np.arange(len(room)), -unclaimed, -room)).tolist()
    for rank, at in enumerate(order):
        if left == 0 or room[at] == 0 or (not loose and len(parts) == shape.nodes):
            break
        if room[at] >= left and (loose or len(parts) + 1 == shape.nodes):
            at = min((o for o in order[rank:] if room[o] >= left), key=lambda o: (room[o], -unclaimed[o], o))
        parts.append((at, min(left, int(room[at]))))
        left -= parts[-1][1]
    return parts if left == 0 and (loose or len(parts) == shape.nodes) else None
