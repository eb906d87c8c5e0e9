"""One more GPU to the job that gains most: the greedy loop of Optimus and SLAQ, and nodes for its
counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import FreeDevices, emptiest
from gpq.policies.shared.sizing import Contender

Gain = Callable[[int], float]  # of k + 1 GPUs over k, in the unit of the policy


def allot(
    snapshot: Snapshot,
    fixed_shapes: Mapping[JobId, Shape],
    contenders: Sequence[Contender],
    gains: Mapping[JobId, Gain],
) -> dict[JobId, Allotment]:
    """What jobs keep, and layouts for the `counts` of the contenders."""
    return {
        **fixed_shapes,
        **layouts(snapshot, contenders, counts(contenders, gains), fixed_shapes),
    }


def counts(contenders: Sequence[Contender], gains: Mapping[JobId, Gain]) -> dict[JobId, int]:
    """In this order, each job gets its minimum while there are GPUs. Then one GPU at a time goes
    where the gain is largest and positive, and the earlier job wins a tie. O(GPUs log jobs)."""
    free = _free_devices(contenders)
    replicas: dict[JobId, int] = {}
    for contender in contenders:
        if free[contender.gpu_type] >= contender.least:
            replicas[contender.job.id] = contender.least
            free[contender.gpu_type] -= contender.least
    heap = [
        (-gains[c.job.id](c.least), order, c.least)
        for order, c in enumerate(contenders)
        if c.job.id in replicas and c.least < c.most
    ]
    heapify(heap)
    while heap:
        gain, order, count = heappop(heap)
        contender = contenders[order]
        if gain >= 0 or free[contender.gpu_type] < 1:
            continue
        count += 1
        replicas[contender.job.id] = count
        free[contender.gpu_type] -= 1
        if count < contender.most:
            heappush(heap, (-gains[contender.job.id](count), order, count))
    return replicas


def _free_devices(contenders: Sequence[Contender]) -> dict[str, int]:
    """Devices for all of them, by type."""
    devices: dict[str, set[tuple[NodeId, str]]] = {}
    for contender in contenders:
        offer_devices = {(node, device) for node, ids in contender.offer.items() for device in ids}
        devices.setdefault(contender.gpu_type, set()).update(offer_devices)
    return {name: len(pairs) for name, pairs in devices.items()}


def layouts(
    snapshot: Snapshot,
    contenders: Sequence[Contender],
    replicas: Mapping[JobId, int],
    fixed_jobs: Iterable[JobId],
) -> dict[JobId, Layout]:
    """Nodes for these counts. A job that keeps its count stays on its nodes. The others, fewest
    GPUs first, take the node with most free GPUs, then the next, as in Pollux's Optimus. Jobs that
    need one node come first. If one of those does not fit, everybody moves. If it still does not
    fit, it waits."""
    stayers = {
        c.job.id
        for c in contenders
        if c.job.placement is not None and replicas.get(c.job.id) == c.job.replicas
    }
    homes = _laid_out(contenders, replicas, FreeDevices(snapshot, fixed_jobs), stayers)
    if any(c.job.id in replicas and c.job.id not in homes for c in contenders):
        new_homes = _laid_out(contenders, replicas, FreeDevices(snapshot, fixed_jobs), set())
        if len(new_homes) > len(homes):
            return new_homes
    return homes


def _laid_out(
    contenders: Sequence[Contender],
    replicas: Mapping[JobId, int],
    board: FreeDevices,
    stayers: set[JobId],
) -> dict[JobId, Layout]:
    homes = _old_homes(contenders, board, stayers)
    seekers = [c for c in contenders if c.job.id in replicas and c.job.id not in homes]
    seekers.sort(key=lambda c: _turn(c, replicas[c.job.id]))
    for contender in seekers:
        layout = _emptiest(board, contender, replicas[contender.job.id])
        if layout is None:
            continue
        placement = board.find(contender.job, layout)
        if placement is not None:
            board.take(placement)
            homes[contender.job.id] = layout
    return homes


def _old_homes(
    contenders: Sequence[Contender], board: FreeDevices, stayers: set[JobId]
) -> dict[JobId, Layout]:
    """Layouts of jobs that stay on their nodes. The board loses their devices."""
    homes: dict[JobId, Layout] = {}
    for contender in contenders:
        placement = contender.job.placement
        if contender.job.id in stayers and placement is not None:
            board.take(placement)
            homes[contender.job.id] = Layout(placement.counts, contender.gpu_type)
    return homes


def _turn(contender: Contender, count: int) -> int:
    """Jobs that need one node for several GPUs come first, the largest before the others. Then jobs
    that may spread, the smallest first."""
    if contender.spreads or count == 1:
        return count
    return -count


def _emptiest(board: FreeDevices, contender: Contender, count: int) -> Layout | None:
    """That many GPUs on the nodes with most free ones. If there are fewer, all of them, as long as
    they are enough for its minimum."""
    parts = emptiest(board.counts(board.kind(contender.job, contender.gpu_type)), count)
    least = contender.least
    if not contender.spreads:
        parts, least = parts[:1], count
    if sum(devices for _, devices in parts) < least:
        return None
    return Layout(
        tuple(sorted((board.nodes[at].id, devices) for at, devices in parts)), contender.gpu_type
    )
