"""place(): allocation -> exactly which GPUs. It never moves a job needlessly. At most one
multi-server job per server, unless a policy chose the servers itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import shape_on
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout, Placement
from gpq.core.model.policy import shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement.free_devices import FreeDevices, Kind


def place(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Placement]:
    """Placements for as many of the allocated jobs as fit. A job without one waits for the next
    round.

    Jobs that keep their devices come first, then layouts, then the largest shapes. Each goes to its
    own servers, otherwise to idle ones, otherwise to the fullest server that still fits (best fit).
    """
    if _latest and _latest[0][0] is snapshot and _latest[0][1] == allocation:
        return dict(_latest[0][2])
    placed = _place(snapshot, allocation)
    _latest[:] = [(snapshot, dict(allocation), dict(placed))]
    return placed


def placeable(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Allotment]:
    """The allocation without the jobs for which `place` has no room. If devices of one server
    differ in memory, it may choose others than the counting assumed."""
    subset = dict(allocation)
    while misfits := subset.keys() - place(snapshot, subset).keys():
        subset = {name: allotment for name, allotment in subset.items() if name not in misfits}
    return subset


# The latest question and its answer: a policy that checks its own allocation asks just before the
# round does.
_latest: list[tuple[Snapshot, dict[JobId, Allotment], dict[JobId, Placement]]] = []


def _place(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Placement]:
    board = FreeDevices(snapshot)
    placed = _unmoved_jobs(snapshot, allocation)
    for placement in placed.values():
        board.take(placement)
    hopeless: dict[Kind, int] = {}  # shapes of this many replicas find no room, whichever jobs move
    queue = deque(_unplaced_jobs(snapshot, allocation, placed))
    while queue:
        job = queue.popleft()
        allotment = allocation[job.id]
        new_placement = board.find(job, allotment)
        if new_placement is None and not isinstance(allotment, Layout) and allotment.nodes == 1:
            kind = board.kind(job, allotment.gpu_type)
            if allotment.replicas < hopeless.get(kind, allotment.replicas + 1):
                displaced_jobs = _make_room(snapshot, allotment.replicas, kind, board, placed)
                if displaced_jobs:
                    queue.extend(displaced_jobs)
                    new_placement = board.find(job, allotment)
                else:
                    hopeless[kind] = allotment.replicas
        if new_placement is not None:
            placed[job.id] = new_placement
            board.take(new_placement)
    return placed


def _unmoved_jobs(
    snapshot: Snapshot, allocation: Mapping[JobId, Allotment]
) -> dict[JobId, Placement]:
    """Jobs that keep their devices."""
    return {
        job.id: job.placement
        for job in snapshot.jobs.values()
        if job.placement is not None
        and (_same(job.placement, allocation.get(job.id), snapshot) or is_fixed(job, snapshot))
    }


def _unplaced_jobs(
    snapshot: Snapshot,
    allocation: Mapping[JobId, Allotment],
    placed: Mapping[JobId, Placement],
) -> list[Job]:
    """The other jobs of the allocation, in the order of placement: layouts, then the largest."""
    jobs = [
        snapshot.jobs[name] for name in allocation if name not in placed and name in snapshot.jobs
    ]
    return sorted(
        jobs,
        key=lambda job: (
            not isinstance(allocation[job.id], Layout),
            -shape_of(allocation[job.id]).replicas,
            -job.spec.priority,
            job.id,
        ),
    )


def _same(placement: Placement, allotment: Allotment | None, snapshot: Snapshot) -> bool:
    if isinstance(allotment, Layout):
        return placement.counts == allotment.parts and allotment.gpu_type in (
            "",
            placement.gpu_type,
        )
    return allotment is not None and allotment == shape_on(placement, snapshot)


def _make_room(
    snapshot: Snapshot,
    replicas: int,
    kind: Kind,
    board: FreeDevices,
    placed: dict[JobId, Placement],
) -> list[Job]:
    """Free enough of one server for a single-server shape, by unplacing smaller movable jobs that
    keep their size.

    They are placed again after it, on other servers. A move costs them a restart, so this happens
    only if nothing else fits, and so that the fewest devices move.
    """
    tenants = _tenants(snapshot, replicas, board, placed)
    total = sum(len(free) for free in board.free)
    best: tuple[int, int, list[Job]] | None = None
    for at in sorted(tenants):
        missing = replicas - len(board.suits(kind, at))
        movers = _movers(tenants[at], missing, kind, board, placed)
        cost = sum(tenant.replicas for tenant in movers)
        if not movers or total - len(board.free[at]) < cost:
            continue
        if best is None or (cost, at) < best[:2]:
            best = (cost, at, movers)
    if best is None:
        return []
    for tenant in best[2]:
        board.give(placed.pop(tenant.id))
    return best[2]


def _tenants(
    snapshot: Snapshot, replicas: int, board: FreeDevices, placed: Mapping[JobId, Placement]
) -> dict[int, list[Job]]:
    """Smaller jobs on one server that keep their devices but could move, by server."""
    tenants: dict[int, list[Job]] = {}
    for name, placement in placed.items():
        tenant = snapshot.jobs[name]
        if (
            len(placement.parts) == 1
            and tenant.placement == placement
            and placement.replicas < replicas
            and not is_fixed(tenant, snapshot)
        ):
            tenants.setdefault(board.index[placement.parts[0][0]], []).append(tenant)
    return tenants


def _movers(
    tenants: Sequence[Job],
    missing: int,
    kind: Kind,
    board: FreeDevices,
    placed: Mapping[JobId, Placement],
) -> list[Job]:
    """The jobs of one server that free the `missing` devices, smallest first. Empty if even all of
    them do not."""
    movers: list[Job] = []
    for tenant in sorted(tenants, key=lambda tenant: (tenant.replicas, tenant.id)):
        if missing <= 0:
            break
        if board.all_suit(kind, placed[tenant.id]):
            movers.append(tenant)
            missing -= tenant.replicas
    return movers if missing <= 0 else []
