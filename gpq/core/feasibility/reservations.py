"""Reservations: GPUs that gpq leaves alone, or gives only to one user's jobs, for a time. Pure. It
says whom a reservation keeps out, and from when.

A reservation keeps jobs away before it begins, so that the GPUs are free in time. A job that can
stop and resume must leave earlier by its grace, which is how long a checkpoint may take. A job that
cannot must not start if its time limit reaches beyond the beginning. If it has no limit, it must
not start in the last hour.
"""

from __future__ import annotations

from gpq.core.feasibility import owners
from gpq.core.feasibility.checkpoints import closed_to
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, NodeId, Seconds

UNKNOWN_LENGTH: Seconds = (
    # no job that cannot stop and has no time limit starts this long before a reservation
    3600.0
)

Barred = frozenset[tuple[NodeId, DeviceId]]
NOTHING: Barred = frozenset()


def barred_devices(snapshot: Snapshot, job: Job) -> Barred:
    """Devices that this job may not use now. They are reserved for others, or refuse its user, or
    they belong to owners for whom it could not leave, or gpq cannot copy its checkpoint there."""
    refusals = snapshot.refusals.get(job.spec.user, NOTHING)
    closed_nodes = [
        node for node in snapshot.nodes.values() if node.owner and not owners.suits(job, node)
    ]
    closed_nodes += [snapshot.nodes[name] for name in closed_to(snapshot, job)]
    if not snapshot.reservations and not closed_nodes:
        return refusals
    reserved = (
        (reservation.node, device)
        for reservation in snapshot.reservations.values()
        if keeps_out(reservation, job, snapshot.now)
        for device in devices_of(reservation, snapshot.nodes.get(reservation.node))
    )
    closed = ((node.id, device.id) for node in closed_nodes for device in node.devices)
    return refusals.union(reserved, closed)


def keeps_out(reservation: Reservation, job: Job, now: Seconds) -> bool:
    """Must the job be off these devices now, or not start there?"""
    if now >= reservation.end or (reservation.user and reservation.user == job.spec.user):
        return False
    return now >= reservation.start - _lead(reservation, job, now)


def _lead(reservation: Reservation, job: Job, now: Seconds) -> Seconds:
    if job.movable:
        return job.spec.grace
    if job.state is not JobState.PENDING:  # it runs to its end wherever it is
        return 0.0
    if job.spec.time_limit is None:
        return UNKNOWN_LENGTH
    return max(job.spec.time_limit - job.run_seconds, 0.0)


def devices_of(reservation: Reservation, node: Node | None) -> tuple[DeviceId, ...]:
    """All devices of the server if none is named."""
    if reservation.devices or node is None:
        return reservation.devices
    return tuple(device.id for device in node.devices)


def reserved_under(job: Job, snapshot: Snapshot) -> list[Reservation]:
    """Reservations of others that the job must now leave devices for."""
    if not snapshot.reservations or job.placement is None:
        return []
    devices = job.placement.devices
    return [
        reservation
        for _, reservation in sorted(snapshot.reservations.items())
        if keeps_out(reservation, job, snapshot.now)
        and any(
            (reservation.node, device) in devices
            for device in devices_of(reservation, snapshot.nodes.get(reservation.node))
        )
    ]


def current(snapshot: Snapshot, now: Seconds) -> list[Reservation]:
    """Reservations that are not over, by their beginning."""
    return sorted(
        (reservation for reservation in snapshot.reservations.values() if now < reservation.end),
        key=lambda reservation: (reservation.start, reservation.id),
    )


def _graces(snapshot: Snapshot, *, movable: bool) -> set[Seconds]:
    """For jobs that hold devices and may or may not be movable, because they have not declared
    themselves."""
    return {
        job.spec.grace
        for job in snapshot.jobs.values()
        if job.placement is not None and job.movable is movable
    }


def next_change(snapshot: Snapshot) -> Seconds:
    """When a reservation begins to matter to a running job, begins or ends. Infinite if there is
    none."""
    reservations = current(snapshot, snapshot.now)
    if not reservations:
        return float("inf")
    graces = _graces(snapshot, movable=True)
    owner_graces = _graces(snapshot, movable=False)
    moments: list[Seconds] = []
    for reservation in reservations:
        moments += [reservation.start, reservation.end]
        moments += [reservation.start - grace for grace in graces]
        if owners.is_owners(reservation):
            moments += [reservation.start + grace for grace in owner_graces]
    return min((moment for moment in moments if moment > snapshot.now), default=float("inf"))
