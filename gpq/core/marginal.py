"""One more GPU to whom it brings most: the greedy loop of Optimus and SLAQ, and seats for the counts that it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gpq.core.board import Board
from gpq.core.contenders import Contender
from gpq.core.models import JobId, Layout, NodeId, Placement, Shape, Snapshot

Gain = Callable[[int], float]  # of k + 1 GPUs over k, in whatever the policy counts


def counts(contenders: Sequence[Contender], gains: Mapping[JobId, Gain]) -> dict[JobId, int]:
    """Each its least, in this order, while there are GPUs; then one more at a time where the gain is largest and
    positive. Of equal gains the earlier one's. O(GPUs log jobs)."""
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


def seats(
    snapshot: Snapshot, contenders: Sequence[Contender], found: Mapping[JobId, int], kept: Mapping[JobId, Shape]
) -> dict[JobId, Layout]:
    """Nodes for these counts. Who has as many as now stays where they are; the others, fewest first, take the node with
    most free GPUs, then the next (as in Pollux's Optimus). What must have one node comes first; should that not fit,
    everybody moves, and should it still not fit, it waits."""
    staying = {c.job.id for c in contenders if c.job.placement is not None and found.get(c.job.id) == c.job.replicas}
    placed = _seated(snapshot, contenders, found, kept, staying)
    if any(c.job.id in found and c.job.id not in placed for c in contenders):
        again = _seated(snapshot, contenders, found, kept, set())
        placed = again if len(again) > len(placed) else placed
    return placed


def _seated(
    snapshot: Snapshot,
    contenders: Sequence[Contender],
    found: Mapping[JobId, int],
    kept: Mapping[JobId, Shape],
    staying: set[JobId],
) -> dict[JobId, Layout]:
    board = Board(snapshot)
    layouts: dict[JobId, Layout] = {}
    for name in sorted(kept):
        if (placement := snapshot.jobs[name].placement) is not None:
            board.take(placement)
    for contender in contenders:
        placement = contender.job.placement
        if contender.job.id in staying and placement is not None:
            board.take(placement)
            layouts[contender.job.id] = _layout(placement, contender.gpu_type)
    rest = [c for c in contenders if c.job.id in found and c.job.id not in layouts]
    rest.sort(key=lambda c: found[c.job.id] if c.spreads or found[c.job.id] == 1 else -found[c.job.id])
    for contender in rest:
        wanted = _emptiest(board, contender, found[contender.job.id])
        placement = board.find(contender.job, wanted) if wanted is not None else None
        if placement is not None:
            board.take(placement)
            layouts[contender.job.id] = _layout(placement, contender.gpu_type)
    return layouts


def _layout(placement: Placement, gpu_type: str) -> Layout:
    return Layout(tuple((node, len(devices)) for node, devices in placement.parts), gpu_type)


def _emptiest(board: Board, contender: Contender, count: int) -> Layout | None:
    """That many GPUs on the nodes with most free ones, or as many as there are if these are enough for its least."""
    free = board.counts(board.kind(contender.job.spec, contender.gpu_type)).copy()
    parts: list[tuple[NodeId, int]] = []
    missing = count
    while missing > 0 and len(free) and (at := int(free.argmax())) is not None and free[at] > 0:
        taken = min(int(free[at]), missing)
        parts.append((board.nodes[at].id, taken))
        missing -= taken
        free[at] = 0
        if not contender.spreads:
            break
    if count - missing < (contender.least if contender.spreads else count):
        return None
    return Layout(tuple(sorted(parts)), contender.gpu_type)
