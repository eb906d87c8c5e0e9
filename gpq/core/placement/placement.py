"""place(): allocation -> exactly which GPUs. Never moves what need not move; at most one multi-node
job per node, unless a policy chose the nodes itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gpq.core.feasibility.shapes import is_fixed, shape_on
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout, Placement
from gpq.core.model.policy import shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement.free_devices import Board, Kind


def place(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Placement]:
    """Placements for as many of the allocated jobs as fit; a job without one waits for the next
    round.

    Those that keep what they have first, then layouts, then the largest shapes: on their own nodes,
    else where nobody is now, else on the fullest node that still fits (best fit).
    """
    if _latest and _latest[0][0] is snapshot and _latest[0][1] == allocation:
        return dict(_latest[0][2])
    placed = _place(snapshot, allocation)
    _latest[:] = [(snapshot, dict(allocation), dict(placed))]
    return placed


def placeable(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Allotment]:
    """The allocation less what `place` has no room for: where devices of one node differ in memory,
    it may choose others than whoever counted them."""
    found = dict(allocation)
    while lost := found.keys() - place(snapshot, found).keys():
        found = {name: allotment for name, allotment in found.items() if name not in lost}
    return found


# The latest question and its answer: a policy that checks its own allocation asks just before the
# round does.
_latest: list[tuple[Snapshot, dict[JobId, Allotment], dict[JobId, Placement]]] = []


def _place(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Placement]:
    board = Board(snapshot)
    placed: dict[JobId, Placement] = {}
    for job in snapshot.jobs.values():
        wanted = allocation.get(job.id)
        if job.placement is not None and (
            _same(job.placement, wanted, snapshot) or is_fixed(job, snapshot)
        ):
            placed[job.id] = job.placement
            board.take(job.placement)
    rest = [
        snapshot.jobs[name] for name in allocation if name not in placed and name in snapshot.jobs
    ]
    sizes = {job.id: shape_of(allocation[job.id]).replicas for job in rest}
    rest.sort(
        key=lambda job: (
            not isinstance(allocation[job.id], Layout),
            -sizes[job.id],
            -job.spec.priority,
            job.id,
        )
    )
    hopeless: dict[Kind, int] = {}  # shapes of so many replicas find no room, whoever moves
    queue = deque(rest)
    while queue:
        job = queue.popleft()
        wanted = allocation[job.id]
        found = board.find(job, wanted)
        if found is None and not isinstance(wanted, Layout) and wanted.nodes == 1:
            kind = board.kind(job, wanted.gpu_type)
            if wanted.replicas < hopeless.get(kind, wanted.replicas + 1):
                moved = _make_room(snapshot, wanted.replicas, kind, board, placed)
                if moved:
                    queue.extend(moved)
                    found = board.find(job, wanted)
                else:
                    hopeless[kind] = wanted.replicas
        if found is not None:
            placed[job.id] = found
            board.take(found)
    return placed


def _same(placement: Placement, wanted: Allotment | None, snapshot: Snapshot) -> bool:
    if isinstance(wanted, Layout):
        return placement.counts == wanted.parts and wanted.gpu_type in ("", placement.gpu_type)
    return wanted is not None and wanted == shape_on(placement, snapshot)


def _make_room(
    snapshot: Snapshot, replicas: int, kind: Kind, board: Board, placed: dict[JobId, Placement]
) -> list[Job]:
    """Free enough of one node for a single-node shape by unplacing smaller movable jobs that keep
    their size.

    They are placed again after it, elsewhere; a move costs them a restart, so it is done only when
    nothing else fits and the fewest devices move.
    """
    tenants: dict[int, list[Job]] = {}
    for name, placement in placed.items():
        other = snapshot.jobs[name]
        if (
            len(placement.parts) == 1
            and other.placement == placement
            and placement.replicas < replicas
            and not is_fixed(other, snapshot)
        ):
            tenants.setdefault(board.index[placement.parts[0][0]], []).append(other)
    total = sum(len(free) for free in board.free)
    best: tuple[int, int, list[Job]] | None = None
    for at in sorted(tenants):
        missing = replicas - len(board.suits(kind, at))
        movers: list[Job] = []
        for other in sorted(tenants[at], key=lambda other: (other.replicas, other.id)):
            if missing <= 0:
                break
            if board.all_suit(kind, placed[other.id]):
                movers.append(other)
                missing -= other.replicas
        cost = sum(other.replicas for other in movers)
        if (
            missing <= 0
            and movers
            and total - len(board.free[at]) >= cost
            and (best is None or (cost, at) < best[:2])
        ):
            best = (cost, at, movers)
    if best is None:
        return []
    for other in best[2]:
        board.give(placed.pop(other.id))
    return best[2]
