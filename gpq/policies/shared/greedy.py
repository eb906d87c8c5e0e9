"""One more GPU to whom it brings most: the greedy loop of Optimus and SLAQ, and nodes for the
counts that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement.free_devices import Board, emptiest
from gpq.policies.shared.sizing import Contender

Gain = Callable[[int], float]  # of k + 1 GPUs over k, in whatever the policy counts


def allot(
    snapshot: Snapshot,
    kept: Mapping[JobId, Shape],
    contenders: Sequence[Contender],
    gains: Mapping[JobId, Gain],
) -> dict[JobId, Allotment]:
    """What is kept, and layouts for the `counts` of the contenders."""
    return {**kept, **layouts(snapshot, contenders, counts(contenders, gains), kept)}


def counts(contenders: Sequence[Contender], gains: Mapping[JobId, Gain]) -> dict[JobId, int]:
    """Each its least, in this order, while there are GPUs; then one more at a time where the gain
    is largest and positive. Of equal gains the earlier one's. O(GPUs log jobs)."""
    devices: dict[str, set[tuple[NodeId, str]]] = {}
    for contender in contenders:
        own = {(node, device) for node, ids in contender.offer.items() for device in ids}
        devices.setdefault(contender.gpu_type, set()).update(own)
    free = {name: len(known) for name, known in devices.items()}
    found: dict[JobId, int] = {}
    for contender in contenders:
        if free[contender.gpu_type] >= contender.least:
            found[contender.job.id] = contender.least
            free[contender.gpu_type] -= contender.least
    heap = [
        (-gains[c.job.id](c.least), order, c.least)
        for order, c in enumerate(contenders)
        if c.job.id in found and c.least < c.most
    ]
    heapify(heap)
    while heap:
        gain, order, count = heappop(heap)
        contender = contenders[order]
        if gain >= 0 or free[contender.gpu_type] < 1:
            continue
        count += 1
        found[contender.job.id] = count
        free[contender.gpu_type] -= 1
        if count < contender.most:
            heappush(heap, (-gains[contender.job.id](count), order, count))
    return found


def layouts(
    snapshot: Snapshot,
    contenders: Sequence[Contender],
    found: Mapping[JobId, int],
    kept: Iterable[JobId],
) -> dict[JobId, Layout]:
    """Nodes for these counts. Who has as many as now stays where they are; the others, fewest
    first, take the node with most free GPUs, then the next (as in Pollux's Optimus). What must have
    one node comes first; should that not fit, everybody moves, and should it still not fit, it
    waits."""
    staying = {
        c.job.id
        for c in contenders
        if c.job.placement is not None and found.get(c.job.id) == c.job.replicas
    }
    laid = _laid_out(contenders, found, Board(snapshot, kept), staying)
    if any(c.job.id in found and c.job.id not in laid for c in contenders):
        again = _laid_out(contenders, found, Board(snapshot, kept), set())
        laid = again if len(again) > len(laid) else laid
    return laid


def _laid_out(
    contenders: Sequence[Contender], found: Mapping[JobId, int], board: Board, staying: set[JobId]
) -> dict[JobId, Layout]:
    laid: dict[JobId, Layout] = {}
    for contender in contenders:
        placement = contender.job.placement
        if contender.job.id in staying and placement is not None:
            board.take(placement)
            laid[contender.job.id] = Layout(placement.counts, contender.gpu_type)
    rest = [c for c in contenders if c.job.id in found and c.job.id not in laid]
    rest.sort(
        key=lambda c: found[c.job.id] if c.spreads or found[c.job.id] == 1 else -found[c.job.id]
    )
    for contender in rest:
        layout = _emptiest(board, contender, found[contender.job.id])
        placement = board.find(contender.job, layout) if layout is not None else None
        if layout is not None and placement is not None:
            board.take(placement)
            laid[contender.job.id] = layout
    return laid


def _emptiest(board: Board, contender: Contender, count: int) -> Layout | None:
    """That many GPUs on the nodes with most free ones, or as many as there are if these are enough
    for its least."""
    parts = emptiest(board.counts(board.kind(contender.job, contender.gpu_type)), count)
    parts = parts if contender.spreads else parts[:1]
    if sum(taken for _, taken in parts) < (contender.least if contender.spreads else count):
        return None
    return Layout(
        tuple(sorted((board.nodes[at].id, taken) for at, taken in parts)), contender.gpu_type
    )
