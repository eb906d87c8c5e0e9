"""Reservations: GPUs that gpq leaves alone, or gives to one user's jobs, for a time. Pure; whom one
keeps out, and from when.

A reservation holds off a job before it begins, so that the GPUs are free by then: one that can be
stopped and go on, by its grace (that is how long it may take to checkpoint); one that cannot, if
its time limit reaches beyond the beginning; where that is not known, in the last hour.
"""

from __future__ import annotations

from gpq.core.feasibility import owners
from gpq.core.feasibility.checkpoints import closed_to
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, NodeId, Seconds

UNKNOWN_LENGTH: Seconds = (
    # before a reservation, no job starts there that may not be stopped and may take any time
    3600.0
)

Barred = frozenset[tuple[NodeId, DeviceId]]
NOTHING: Barred = frozenset()


def barred(snapshot: Snapshot, job: Job) -> Barred:
    """Devices that reservations of others keep this job from, now, those of owners that it could
    not leave for them, and those where its checkpoint cannot be brought."""
    kept = [node for node in snapshot.nodes.values() if node.owner and not owners.suits(job, node)]
    kept += [snapshot.nodes[name] for name in closed_to(snapshot, job)]
    if not snapshot.reservations and not kept:
        return NOTHING
    reserved = (
        (held.node, device)
        for _, held in sorted(snapshot.reservations.items())
        if keeps_out(held, job, snapshot.now)
        for device in devices_of(held, snapshot.nodes.get(held.node))
    )
    return frozenset(
        [*reserved, *((node.id, device.id) for node in kept for device in node.devices)]
    )


def keeps_out(held: Reservation, job: Job, now: Seconds) -> bool:
    """Must the job be off these devices now, or not start there?"""
    if now >= held.end or (held.user and held.user == job.spec.user):
        return False
    return now >= held.start - _lead(held, job, now)


def _lead(held: Reservation, job: Job, now: Seconds) -> Seconds:
    if job.movable:
        return job.spec.grace
    if job.state is not JobState.PENDING:  # it runs to its end wherever it is
        return 0.0
    if job.spec.time_limit is None:
        return UNKNOWN_LENGTH
    return max(job.spec.time_limit - job.run_seconds, 0.0)


def devices_of(held: Reservation, node: Node | None) -> tuple[DeviceId, ...]:
    """All of the node's where none is named."""
    return (
        held.devices or tuple(device.id for device in node.devices)
        if node is not None
        else held.devices
    )


def reserved_under(job: Job, snapshot: Snapshot) -> list[Reservation]:
    """Reservations of others that the job must leave devices for now."""
    if not snapshot.reservations or job.placement is None:
        return []
    return [
        held
        for _, held in sorted(snapshot.reservations.items())
        if keeps_out(held, job, snapshot.now)
        and any(
            (held.node, device) in job.placement.devices
            for device in devices_of(held, snapshot.nodes.get(held.node))
        )
    ]


def current(snapshot: Snapshot, now: Seconds) -> list[Reservation]:
    """Those that are not over, by beginning."""
    return sorted(
        (held for held in snapshot.reservations.values() if now < held.end),
        key=lambda held: (held.start, held.id),
    )


def _graces(snapshot: Snapshot) -> set[Seconds]:
    """Of jobs that have not declared themselves."""
    return {
        job.spec.grace
        for job in snapshot.jobs.values()
        if job.placement is not None and not job.movable
    }


def next_change(snapshot: Snapshot) -> Seconds:
    """When a reservation begins to matter to a running job, begins or ends; infinite where none
    will."""
    moments = [float("inf")]
    for held in current(snapshot, snapshot.now):
        graces = {
            job.spec.grace
            for job in snapshot.jobs.values()
            if job.placement is not None and job.movable
        }
        moments += [moment for moment in (held.start, held.end) if moment > snapshot.now]
        if owners.is_owners(held):
            moments += [
                held.start + grace
                for grace in sorted(_graces(snapshot))
                if held.start + grace > snapshot.now
            ]
        moments += [
            held.start - grace for grace in sorted(graces) if held.start - grace > snapshot.now
        ]
    return min(moments)
