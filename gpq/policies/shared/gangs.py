"""Gangs: jobs that get exactly the GPUs they asked for, or none. This finds seats. The policy
chooses the order of the jobs.

Knows nothing about speeds. `placement.place` can place everything that this names.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpq.core.feasibility.mobility import is_leaving
from gpq.core.feasibility.shapes import is_mixed, shape_on, shape_types
from gpq.core.model.jobs import Allotment, Job, Level
from gpq.core.model.placements import Layout, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement import Counts, FreeDevices, emptiest, placeable
from gpq.policies.shared.eligible import eligible


def seat_all(
    snapshot: Snapshot, order: Iterable[Job], *, spread: bool = False
) -> dict[JobId, Allotment]:
    """Every job in `order` gets its gang if it still fits. Other jobs are skipped."""
    seats = Seats(snapshot, spread=spread)
    for job in order:
        seats.admit(job)
    return seats.allotments()


class Seats:
    """Which gang sits where. Later jobs do not displace an admitted job.

    A running job keeps its devices if it is admitted. A waiting job gets a preliminary seat, and
    moves to another one if a later job wants to keep what it has. The seats are final with
    `allotments`.
    """

    def __init__(
        self, snapshot: Snapshot, *, keep_running: bool = False, spread: bool = False
    ) -> None:
        """`keep_running`: running jobs are not up for decision. `spread`: always use the emptiest
        nodes, like the artifacts of Pollux and Tiresias. Otherwise a gang that fits on one node
        goes to the fullest node with room for it."""
        self._snapshot = snapshot
        self._spread = spread
        self._final = keep_running
        movable_jobs: set[JobId] = set()
        if not keep_running:
            movable_jobs = {job.id for job in eligible(snapshot)}
        self._fixed_seats: dict[JobId, Placement] = {
            name: placement
            for name in sorted(snapshot.jobs)
            if name not in movable_jobs and (placement := snapshot.jobs[name].placement) is not None
        }
        self._provisional_seats: dict[JobId, Placement] = {}
        self._sitters: dict[tuple[NodeId, DeviceId], JobId] = {}
        self._empty = FreeDevices(snapshot)
        self._free = FreeDevices(snapshot, self._fixed_seats)  # without what jobs keep
        self._vacancies = self._free.copy()  # also without the seats

    def admit(self, job: Job, avoid: Placement | None = None) -> bool:
        """Seats its gang on devices other than `avoid` and returns True, if it still fits."""
        if job.placement is not None and self._keep(job, job.placement):
            return True
        board = self._vacancies
        if avoid is not None:
            board = board.copy()
            board.take(avoid)
        seat = self._sit(job, board)
        if seat is not None:
            self._vacancies.take(seat)
            self._settle(job.id, seat)
        return seat is not None

    def could_ever(self, job: Job) -> bool:
        """Would it fit alone?"""
        return self._find(job, self._empty) is not None

    def later(self, job: Job, leavers: Iterable[JobId]) -> Placement | None:
        """Devices on which it will fit when the `leavers` are gone. None while it does not fit."""
        board = self._vacancies.copy()
        seats = {**self._provisional_seats, **self._fixed_seats}
        for name in leavers:
            board.give(seats[name])
        return self._find(job, board)

    def allotments(self) -> dict[JobId, Allotment]:
        """The shapes of jobs that keep what they have, and layouts of the others."""
        seats = self._provisional_seats
        if not self._final:
            seats = self._reseat(seats, self._free.copy()) or seats
        allotments: dict[JobId, Allotment] = {
            name: shape_on(p, self._snapshot) for name, p in self._fixed_seats.items()
        }
        for name, seat in seats.items():
            allotments[name] = Layout(seat.counts, shape_on(seat, self._snapshot).gpu_type)
        return placeable(self._snapshot, allotments)

    def _keep(self, job: Job, placement: Placement) -> bool:
        """Keep a running gang. Gangs seated on its devices get other seats, if there is room."""
        if placement.replicas != job.spec.min_gpus or is_leaving(job, self._snapshot):
            return False
        sitters = {self._sitters[device] for device in placement.devices if device in self._sitters}
        if not sitters:
            self._vacancies.take(placement)
        elif not self._displace(sitters, placement):
            return False
        self._fixed_seats[job.id] = placement
        self._free.take(placement)
        return True

    def _displace(self, sitters: set[JobId], placement: Placement) -> bool:
        """Seat them outside the placement, which then counts as taken. If there is no room, change
        nothing and return False."""
        order = [name for name in self._provisional_seats if name in sitters]
        vacancies = self._vacancies.copy()
        for name in order:
            vacancies.give(self._provisional_seats[name])
        vacancies.take(placement)
        seats = self._reseat(order, vacancies)
        if seats is None:
            return False
        for name in order:
            for device in self._provisional_seats[name].devices:
                del self._sitters[device]
        self._vacancies = vacancies
        for name, seat in seats.items():
            self._settle(name, seat)
        return True

    def _settle(self, name: JobId, seat: Placement) -> None:
        self._provisional_seats[name] = seat
        self._sitters.update(dict.fromkeys(seat.devices, name))

    def _reseat(self, order: Iterable[JobId], board: FreeDevices) -> dict[JobId, Placement] | None:
        """Seats for these jobs, one after the other, on a board, which this uses up. None if they
        do not fit."""
        seats: dict[JobId, Placement] = {}
        for name in order:
            seat = self._sit(self._snapshot.jobs[name], board)
            if seat is None:
                return None
            seats[name] = seat
            board.take(seat)
        return seats

    def _sit(self, job: Job, board: FreeDevices) -> Placement | None:
        """Nodes that no job has to leave first, if that takes no more nodes and the policy does not
        want to spread."""
        seat = self._find(job, board)
        if seat is None or self._spread:
            return seat
        at_once = self._find(job, board, idle=True)
        if at_once is not None and len(at_once.parts) <= len(seat.parts):
            return at_once
        return seat

    def _find(self, job: Job, board: FreeDevices, *, idle: bool = False) -> Placement | None:
        """On the type with most free devices, on one node if possible. Otherwise, for a script, on
        the emptiest nodes."""
        # If types differ, a batch may be too large for the memory of one. Only a simulator knows
        # this in advance.
        oracle = self._snapshot.oracles.get(job.id) if is_mixed(self._snapshot) else None
        kinds = [board.kind(job, gpu_type) for gpu_type in shape_types(self._snapshot)]
        counts = {kind: board.counts(kind, idle=idle) for kind in kinds}
        for kind in sorted(kinds, key=lambda kind: (-int(counts[kind].sum()), kind.gpu_type)):
            parts = self._nodes(job, counts[kind])
            if parts:
                seat = board.devices(kind, parts)
                shape = shape_on(seat, self._snapshot)
                if oracle is None or oracle.step_seconds(shape) is not None:
                    return seat
        return None

    def _nodes(self, job: Job, free: Counts) -> list[tuple[int, int]]:
        """(position of a node, devices there) for a gang. Empty if it does not fit."""
        gang = job.spec.min_gpus
        hosts = np.flatnonzero(free >= gang)
        if len(hosts):
            best = free[hosts].argmin()
            if self._spread:
                best = free[hosts].argmax()
            return [(int(hosts[best]), gang)]
        if job.spec.level is Level.SCRIPT and free.sum() >= gang:
            return emptiest(free, gang)
        return []
