"""place(): allocation -> exactly which GPUs, the emptiest servers first. It never moves a job
needlessly. At most one multi-server job per server, unless a policy chose the servers itself.

`FreeDevices` is the board of a round: which devices are still available, counted by server so that
thousands of servers cost little."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.reservations import NOTHING, Barred, barred_devices
from gpq.core.feasibility.shapes import is_fit, nodes_up, shape_on, usable
from gpq.core.model.jobs import Allotment, Job, JobSpec
from gpq.core.model.nodes import Node
from gpq.core.model.placements import Layout, Placement, Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes two jobs equal when they ask for devices: the type, the least memory, the type of
    the shape, and whether it needs more than one. Also what is reserved for others, and what the
    server must have."""

    requested_type: str
    memory_mib: int
    gpu_type: str
    several: bool = False
    barred: Barred = NOTHING
    environment: str = ""


# more than any server has devices: a server where the job can start at once comes first
_MUST_WAIT = 1 << 20
# The latest question and its answer: a policy that checks its own allocation asks just before the
# round does.
_latest: list[tuple[Snapshot, dict[JobId, Allotment], dict[JobId, Placement]]] = []


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


def _place(snapshot: Snapshot, allocation: Mapping[JobId, Allotment]) -> dict[JobId, Placement]:
    board = FreeDevices(snapshot)
    placed = {
        job.id: job.placement
        for job in snapshot.jobs.values()
        if job.placement is not None
        and (_same(job.placement, allocation.get(job.id), snapshot) or is_fixed(job, snapshot))
    }
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
        types = ("", placement.gpu_type)
        devices = tuple(ids for _, ids in placement.parts)
        return (
            placement.counts == allotment.parts
            and allotment.gpu_type in types
            and allotment.devices in ((), devices)
        )
    return allotment == shape_on(placement, snapshot)


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
    tenants: dict[int, list[Job]] = {}  # by server
    for name, placement in placed.items():
        tenant = snapshot.jobs[name]
        if (
            len(placement.parts) == 1
            and tenant.placement == placement
            and placement.replicas < replicas
            and not is_fixed(tenant, snapshot)
        ):
            tenants.setdefault(board.index[placement.parts[0][0]], []).append(tenant)
    total = sum(map(len, board.free))
    ways = []
    for at in tenants:
        missing = replicas - len(board.suits(kind, at))
        movers = _movers(tenants[at], missing, kind, board, placed)
        cost = sum(tenant.replicas for tenant in movers)
        if movers and cost <= total - len(board.free[at]):
            ways.append((cost, at, movers))
    if not ways:
        return []
    _, _, movers = min(ways, key=lambda way: way[:2])
    for tenant in movers:
        board.give(placed.pop(tenant.id))
    return movers


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


@dataclass(slots=True)
class _Supply:
    """For one kind: the suitable positions in each server (None: all), and how many of them are
    free, and idle."""

    suited: list[frozenset[int] | None]
    free: Counts
    idle: Counts  # free in this round, and held by nobody now


class FreeDevices:
    """Devices not yet given in this round, and which servers already carry a multi-server job."""

    def __init__(self, snapshot: Snapshot, keepers: Iterable[JobId] = ()) -> None:
        """`keepers` are jobs that already keep their own devices."""
        self._snapshot = snapshot
        self.nodes = nodes_up(snapshot)
        self.index = {node.id: i for i, node in enumerate(self.nodes)}
        self.position = [
            {device.id: k for k, device in enumerate(node.devices)} for node in self.nodes
        ]
        self.free: list[set[int]] = [set(range(len(node.devices))) for node in self.nodes]
        self.busy: list[set[int]] = [set() for _ in self.nodes]
        self.spanned = np.zeros(len(self.nodes), dtype=bool)
        self._kinds: dict[Kind, _Supply] = {}
        for job in snapshot.holders:
            for at, positions in self._parts(job.parts):
                self.busy[at] |= positions
        for name in keepers:
            if (placement := snapshot.jobs[name].placement) is not None:
                self.take(placement)

    def copy(self) -> FreeDevices:
        """Another board with the same available devices."""
        twin = copy(self)
        twin.free = [set(positions) for positions in self.free]
        twin.spanned = self.spanned.copy()
        twin._kinds = {
            kind: _Supply(s.suited, s.free.copy(), s.idle.copy()) for kind, s in self._kinds.items()
        }
        return twin

    def kind(self, job: Job, gpu_type: str) -> Kind:
        spec = job.spec
        reserved = barred_devices(self._snapshot, job)
        return Kind(
            spec.gpu_type,
            spec.min_gpu_memory_mib,
            gpu_type,
            spec.min_gpus > 1,
            reserved,
            spec.environment,
        )

    def take(self, placement: Placement) -> None:
        """Mark these devices as given."""
        for at, positions in self._parts(placement.parts):
            self.free[at] -= positions
            self._recount(at)
            if len(placement.parts) > 1:
                self.spanned[at] = True

    def give(self, placement: Placement) -> None:
        """Make these devices available again. Servers that carried a multi-server job stay
        marked."""
        for at, positions in self._parts(placement.parts):
            self.free[at] |= positions
            self._recount(at)

    def suits(self, kind: Kind, at: int) -> set[int]:
        """Free positions of one server that suit the kind."""
        suited = self._supply(kind).suited[at]
        return self.free[at] if suited is None else self.free[at] & suited

    def counts(self, kind: Kind, *, idle: bool = False) -> Counts:
        """Free devices that suit the kind, by server. With `idle`, only those that nobody holds
        now."""
        return self._supply(kind).idle if idle else self._supply(kind).free

    def all_suit(self, kind: Kind, placement: Placement) -> bool:
        """Would every device of a placement suit the kind?"""
        suited = self._supply(kind).suited
        return all(
            (mask := suited[at]) is None or positions <= mask
            for at, positions in self._parts(placement.parts)
        )

    def devices(self, kind: Kind, parts: Sequence[tuple[int, int]]) -> Placement:
        """This many free devices of these servers (position, count), idle ones first, in the order
        of the server."""
        return self._placement(parts, kind, {})

    def find(self, job: Job, allotment: Allotment) -> Placement | None:
        """Devices for one job: its own first, then idle ones, then the fullest server that still
        fits (best fit). A number that is not a power of two goes where blocks of its pieces are
        free, if there are any (see `blocks`). Elsewhere it leaves fragments."""
        kind = self.kind(job, allotment.gpu_type)
        own = dict(self._parts(job.parts))
        if isinstance(allotment, Layout):
            parts = [(self.index.get(node, -1), count) for node, count in allotment.parts]
            if any(at < 0 or len(self.suits(kind, at)) < count for at, count in parts):
                return None
            if allotment.devices:
                return self._exactly(kind, parts, allotment)
            return self._placement(parts, kind, own)
        if allotment.nodes == 1:
            return self._find_one(kind, allotment, own)
        return self._find_several(kind, allotment, own)

    def _exactly(
        self, kind: Kind, parts: Sequence[tuple[int, int]], layout: Layout
    ) -> Placement | None:
        """The devices that the layout names, if all of them are available."""
        for (at, _), ids in zip(parts, layout.devices, strict=True):
            if not {self.position[at].get(device, -1) for device in ids} <= self.suits(kind, at):
                return None
        at, devices = parts[0][0], layout.devices
        gpu_type = self.nodes[at].devices[self.position[at][devices[0][0]]].type
        names = (node for node, _ in layout.parts)
        return Placement(tuple(zip(names, devices, strict=True)), gpu_type)

    def _find_one(self, kind: Kind, shape: Shape, own: dict[int, set[int]]) -> Placement | None:
        here = self._supply(kind)
        free = here.free
        if shape.replicas & (shape.replicas - 1):
            exact = free & shape.replicas == shape.replicas
            free = np.where(exact, free, 0) if exact.any() else free

        def must_wait(at: int) -> bool:
            at_once = self.suits(kind, at) - (self.busy[at] - own[at])
            return len(at_once) < shape.replicas

        fitting = [at for at in own if free[at] >= shape.replicas]
        if fitting:
            best = min(fitting, key=lambda at: (must_wait(at), free[at], at))
        else:
            if free.max(initial=0) < shape.replicas:
                return None
            cost = free + _MUST_WAIT * (here.idle < shape.replicas)
            best = int(np.argmin(np.where(free >= shape.replicas, cost, np.iinfo(np.int64).max)))
        return self._placement([(best, shape.replicas)], kind, own)

    def _find_several(self, kind: Kind, shape: Shape, own: dict[int, set[int]]) -> Placement | None:
        free = self._supply(kind).free
        open_nodes = np.flatnonzero((free > 0) & ~self.spanned)
        order = sorted(open_nodes.tolist(), key=lambda at: (-free[at], at not in own, at))
        parts: list[tuple[int, int]] = []
        missing = shape.replicas
        for at in order[: shape.nodes]:
            parts.append((at, min(missing, int(free[at]))))
            missing -= parts[-1][1]
            if missing == 0:
                break
        if missing or len(parts) != shape.nodes:
            return None
        return self._placement(parts, kind, own)

    def _placement(
        self, parts: Sequence[tuple[int, int]], kind: Kind, own: dict[int, set[int]]
    ) -> Placement:
        device_parts: list[tuple[NodeId, tuple[DeviceId, ...]]] = []
        gpu_type = ""
        for at, count in sorted(parts):
            mine, node = own.get(at, set()), self.nodes[at]
            suited = sorted(
                self.suits(kind, at), key=lambda k: (k not in mine, k in self.busy[at] - mine, k)
            )
            positions = sorted(suited[:count])
            device_parts.append((node.id, tuple(node.devices[k].id for k in positions)))
            gpu_type = node.devices[positions[0]].type
        return Placement(tuple(device_parts), gpu_type)

    def _parts(
        self, parts: Iterable[tuple[NodeId, tuple[DeviceId, ...]]]
    ) -> list[tuple[int, set[int]]]:
        """(position of a server, those of its devices), of the servers that are up."""
        positions = []
        for node, devices in parts:
            at = self.index.get(node)
            if at is not None:
                known = self.position[at]
                positions.append((at, {known[device] for device in devices if device in known}))
        return positions

    def _supply(self, kind: Kind) -> _Supply:
        supply = self._kinds.get(kind)
        if supply is None:
            spec = JobSpec(
                (),
                "",
                user="",
                uid=0,
                gpu_type=kind.requested_type,
                min_gpu_memory_mib=kind.memory_mib,
                min_gpus=1 + kind.several,
            )
            suited = [self._suitable_devices(node, kind, spec) for node in self.nodes]
            zeros = np.zeros(len(self.nodes), dtype=np.int64)
            supply = self._kinds[kind] = _Supply(suited, zeros, zeros.copy())
            for at in range(len(self.nodes)):
                self._count(supply, at)
        return supply

    def _suitable_devices(self, node: Node, kind: Kind, spec: JobSpec) -> frozenset[int] | None:
        if not is_fit(self._snapshot.checks, node.id, kind.environment):
            return frozenset()
        fitting = frozenset(
            k
            for k, d in enumerate(node.devices)
            if usable(d, spec)
            and kind.gpu_type in ("", d.type)
            and (node.id, d.id) not in kind.barred
        )
        return None if len(fitting) == len(node.devices) else fitting

    def _recount(self, at: int) -> None:
        for supply in self._kinds.values():
            self._count(supply, at)

    def _count(self, supply: _Supply, at: int) -> None:
        suited = supply.suited[at]
        free = self.free[at] if suited is None else self.free[at] & suited
        supply.free[at] = len(free)
        supply.idle[at] = len(free - self.busy[at])


def emptiest(free: Counts, count: int) -> list[tuple[int, int]]:
    """(position of a server, devices there) for `count` devices, or for all if there are fewer.
    Servers with most devices come first."""
    parts: list[tuple[int, int]] = []
    for at in np.argsort(-free, kind="stable").tolist():
        if count == 0 or free[at] == 0:
            break
        parts.append((at, min(count, int(free[at]))))
        count -= parts[-1][1]
    return parts
