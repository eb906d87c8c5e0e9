"""Gangs: jobs that get exactly the GPUs they asked for, or none. Finds seats; the order of the jobs is the policy's.

Knows nothing of speeds. What it names, `placement.place` can place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

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
from gpq.core.shapes import by_type, held_by, is_fixed, is_leaving, is_mixed, nodes_up, shape_on, supply

Claim = frozenset[tuple[NodeId, DeviceId]]
Free = dict[NodeId, set[DeviceId]]
Parts = dict[str, dict[NodeId, frozenset[DeviceId]]]  # by type, then node: what a kind of jobs may use
NOTHING: Claim = frozenset()
NONE_FREE: AbstractSet[DeviceId] = frozenset()


@dataclass(frozen=True, slots=True)
class Seat:
    """Devices found for a gang, all of one type ("" where all devices are)."""

    parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]
    gpu_type: str

    @property
    def layout(self) -> Layout:
        return Layout(tuple((node, len(devices)) for node, devices in self.parts), self.gpu_type)

    @property
    def claim(self) -> Claim:
        return frozenset((node, device) for node, devices in self.parts for device in devices)


def contenders(snapshot: Snapshot) -> list[Job]:
    """Jobs that a policy may decide on now, by id: those that wait and may start, and those that may be moved."""
    jobs = (snapshot.jobs[name] for name in sorted(snapshot.jobs))
    return [job for job in jobs if _is_open(job, snapshot)]


def waiting(snapshot: Snapshot) -> list[Job]:
    """Those of them that hold nothing, in the order of priority, then submission."""
    jobs = [job for job in contenders(snapshot) if job.placement is None]
    return sorted(jobs, key=arrival)


def arrival(job: Job) -> tuple[int, float, JobId]:
    """Sorts by priority, then submission."""
    return -job.spec.priority, job.submitted_at, job.id


def _is_open(job: Job, snapshot: Snapshot) -> bool:
    if job.wish is not Wish.RUN:
        return False
    if job.state in HOLDS_DEVICES:
        return not is_fixed(job, snapshot)
    return job.state is JobState.PENDING and snapshot.now >= job.not_before


def seat_all(snapshot: Snapshot, order: Iterable[Job], *, spread: bool = False) -> dict[JobId, Allotment]:
    """Every job in `order` gets its gang if it still fits; those that do not are skipped."""
    seats = Seats(snapshot, spread=spread)
    for job in order:
        seats.admit(job)
    return seats.allotments()


class Seats:
    """Who sits where. A job that was admitted is not displaced by those that come later.

    What runs keeps its devices if it is admitted. Who waits is seated for the time being, and sits down
    elsewhere when a later job wants to keep what it has; the seats are final with `allotments`.
    """

    def __init__(self, snapshot: Snapshot, *, keep_running: bool = False, spread: bool = False) -> None:
        """`keep_running`: nothing that runs is up for decision. `spread`: always on the emptiest nodes, as the artifacts
        of Pollux and Tiresias do; else a gang that fits on one node is put on the fullest that has room for it."""
        self._snapshot = snapshot
        self._spread = spread
        self._final = keep_running
        self._mixed = is_mixed(snapshot)
        self._kinds: dict[tuple[str, int], Parts] = {}
        self._free: Free = {node.id: {device.id for device in node.devices} for node in nodes_up(snapshot)}
        self._kept: dict[JobId, Placement] = {}
        self._seated: dict[JobId, Seat] = {}
        for name in sorted(snapshot.jobs):
            job = snapshot.jobs[name]
            if job.placement is not None and (keep_running or not _is_open(job, snapshot)):
                self._kept[name] = job.placement
                _take(self._free, job.placement.devices)
        self._rest = _less(self._free, ())
        self._sitter: dict[tuple[NodeId, DeviceId], JobId] = {}
        held = held_by(snapshot)
        self._idle = {node: {d for d in ids if (node, d) not in held} for node, ids in self._free.items()}

    def admit(self, job: Job, avoid: Claim = NOTHING) -> bool:
        """Does its gang still fit, on other devices than those to `avoid`? Then it is seated."""
        if job.placement is not None and self._keep(job, job.placement):
            return True
        seat = self._sit(job, _less(self._rest, avoid) if avoid else self._rest)
        if seat is not None:
            self._settle(job.id, seat)
        return seat is not None

    def could_ever(self, job: Job) -> bool:
        """Would it fit if it were alone?"""
        return self._find(job, {node.id: {d.id for d in node.devices} for node in nodes_up(self._snapshot)}) is not None

    def later(self, job: Job, freed: Iterable[JobId]) -> Claim | None:
        """Devices on which it will fit once the `freed` jobs are gone; None while it does not fit."""
        free = _less(self._rest, ())
        for name in freed:
            _give(free, self._kept[name].devices if name in self._kept else self._seated[name].claim)
        seat = self._find(job, free)
        return seat.claim if seat is not None else None

    def allotments(self) -> dict[JobId, Allotment]:
        """The shapes of those that keep what they have, and layouts of the others."""
        order = list(self._seated)
        seated = None if self._final else self._reseat(order, _less(self._free, ()))
        found: dict[JobId, Allotment] = {name: shape_on(p, self._snapshot) for name, p in self._kept.items()}
        found |= {name: seat.layout for name, seat in (self._seated if seated is None else seated).items()}
        return _placeable(self._snapshot, found)

    def _keep(self, job: Job, placement: Placement) -> bool:
        """Let a running gang stay; those seated on its devices sit down elsewhere, if there is room."""
        if placement.replicas != job.spec.min_gpus or is_leaving(job, self._snapshot):
            return False
        displaced = {self._sitter[device] for device in placement.devices if device in self._sitter}
        rest = _less(self._rest, placement.devices)
        for name in displaced:
            _give(rest, self._seated[name].claim - placement.devices)
        order = [name for name in self._seated if name in displaced] if displaced else []
        seated = self._reseat(order, rest)
        if seated is None:
            return False
        for name in order:
            claim = self._seated[name].claim
            _give(self._rest, claim)
            for device in claim:
                del self._sitter[device]
        self._kept[job.id] = placement
        _take(self._free, placement.devices)
        _take(self._rest, placement.devices)
        for name, seat in seated.items():
            self._settle(name, seat)
        return True

    def _settle(self, name: JobId, seat: Seat) -> None:
        self._seated[name] = seat
        self._sitter.update(dict.fromkeys(seat.claim, name))
        _take(self._rest, seat.claim)

    def _reseat(self, order: Iterable[JobId], free: Free) -> dict[JobId, Seat] | None:
        """These jobs, one after the other, on `free` (which is used up); None if they do not fit."""
        seated: dict[JobId, Seat] = {}
        for name in order:
            seat = self._sit(self._snapshot.jobs[name], free)
            if seat is None:
                return None
            seated[name] = seat
            _take(free, seat.claim)
        return seated

    def _sit(self, job: Job, free: Free) -> Seat | None:
        """Where nobody has to leave first, if that takes no more nodes and the policy does not want it spread."""
        seat = self._find(job, free)
        if seat is None or self._spread:
            return seat
        at_once = self._find(job, {node: ids & self._idle[node] for node, ids in free.items()})
        return at_once if at_once is not None and len(at_once.parts) <= len(seat.parts) else seat

    def _find(self, job: Job, free: Mapping[NodeId, set[DeviceId]]) -> Seat | None:
        """On the type with most free devices, on one node if it can be, else for a script on the emptiest nodes."""
        if sum(map(len, free.values())) < job.spec.min_gpus:
            return None
        offers = []
        for gpu_type, part in self._usable(job).items():
            here = {node: found for node, ids in part.items() if (found := ids & free.get(node, NONE_FREE))}
            offers.append((-sum(map(len, here.values())), gpu_type, here))
        for _, gpu_type, here in sorted(offers, key=lambda offer: offer[:2]):
            nodes = _nodes(job, {node: len(ids) for node, ids in here.items()}, self._spread)
            if nodes:
                seat = Seat(tuple((node, self._pick(node, here[node], count)) for node, count in nodes), gpu_type)
                if self._runs(job, seat.layout.shape):
                    return seat
        return None

    def _usable(self, job: Job) -> Parts:
        key = (job.spec.gpu_type, job.spec.min_gpu_memory_mib)
        if key not in self._kinds:
            parts = by_type(supply(self._snapshot, job, {}), self._snapshot)
            self._kinds[key] = {
                name: {node: frozenset(ids) for node, ids in part.items()} for name, part in parts.items()
            }
        return self._kinds[key]

    def _pick(self, node: NodeId, devices: AbstractSet[DeviceId], count: int) -> tuple[DeviceId, ...]:
        """Those that nobody holds first, then in the order of the node, as `Board` takes them."""
        order = [d.id for d in self._snapshot.nodes[node].devices if d.id in devices]
        idle = self._idle[node]
        return tuple(sorted(order, key=lambda device: device not in idle)[:count])

    def _runs(self, job: Job, shape: Shape) -> bool:
        """Where types differ, a batch may be too large for the memory of one; only a simulator knows beforehand."""
        oracle = self._snapshot.oracles.get(job.id)
        return oracle is None or not self._mixed or oracle.step_seconds(shape) is not None


def _nodes(job: Job, counts: Mapping[NodeId, int], spread: bool) -> list[tuple[NodeId, int]]:
    """(node, how many of its free devices) for a gang, sorted; empty if it does not fit."""
    gang = job.spec.min_gpus
    fitting = [(count, node) for node, count in counts.items() if count >= gang]
    if fitting:
        return [(min(fitting, key=lambda one: (-one[0] if spread else one[0], one[1]))[1], gang)]
    if job.spec.level is not Level.SCRIPT or sum(counts.values()) < gang:
        return []
    parts: list[tuple[NodeId, int]] = []
    for node in sorted(counts, key=lambda node: (-counts[node], node)):
        parts.append((node, min(gang, counts[node])))
        gang -= parts[-1][1]
        if gang == 0:
            break
    return sorted(parts)


def _placeable(snapshot: Snapshot, allotments: dict[JobId, Allotment]) -> dict[JobId, Allotment]:
    """Less those that `place` cannot place: on nodes whose devices differ in memory, it may choose other ones than here."""
    while True:
        placed = place(snapshot, allotments)
        if len(placed) == len(allotments):
            return allotments
        allotments = {name: allotment for name, allotment in allotments.items() if name in placed}


def _take(free: Free, claim: Iterable[tuple[NodeId, DeviceId]]) -> None:
    for node, device in claim:
        if node in free:
            free[node].discard(device)


def _give(free: Free, claim: Iterable[tuple[NodeId, DeviceId]]) -> None:
    for node, device in claim:
        if node in free:
            free[node].add(device)


def _less(free: Free, claim: Iterable[tuple[NodeId, DeviceId]]) -> Free:
    left = {node: set(devices) for node, devices in free.items()}
    _take(left, claim)
    return left
