"""Servers with an owner: gpq gives the GPUs back while the owner is there, and uses them again when
the owner has left.

The presence of an owner is a reservation of the whole server, which the server's reports create and
remove. Silence removes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import DeviceState, Node, NodeState, Reservation
from gpq.core.model.profile import RESIZE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds

FOR_EVER: Seconds = 1e11
ITS_OWNER = "its owner"  # who asked for such a reservation


def presence(node: Node) -> str:
    """What shows that the owner is there, such as ``uses GPU 0``. "" if nothing does, or if there
    is no owner."""
    if not node.owner:
        return ""
    for device in node.devices:
        # a device that is only briefly occupied has neither
        occupied = device.state is DeviceState.FOREIGN or bool(device.reason)
        if occupied and any(
            process.user == node.owner and not process.attempt for process in device.processes
        ):
            return f"uses GPU {device.index}"
    return "asked for it with `gpq yield`" if node.owner in node.yields else ""


def fold(
    reservations: Mapping[int, Reservation], node: Node, now: Seconds
) -> Mapping[int, Reservation]:
    """Reservations after a report of `node`. The same mapping if nothing changes."""
    if node.state is not NodeState.UP:
        return reservations
    own = {
        number: reservation
        for number, reservation in reservations.items()
        if reservation.node == node.id and is_owners(reservation)
    }
    expected = [node.owner] if presence(node) else []
    if [reservation.user for reservation in own.values()] == expected:
        return reservations
    others = {number: reservations[number] for number in reservations if number not in own}
    for user in expected:
        number = min([0, *others]) - 1
        others[number] = Reservation(number, node.id, now, FOR_EVER, (), user, ITS_OWNER)
    return others


def is_owners(reservation: Reservation) -> bool:
    """Owners' reservations have ids below 0."""
    return reservation.id < 0


def suits(job: Job, node: Node) -> bool:
    """May the job start there? On a server with an owner, only the owner's jobs and jobs that can
    leave without loss."""
    return (
        not node.owner
        or job.spec.user == node.owner
        or (leaves(job) and RESIZE not in job.profile.lost)
    )


def leaves(job: Job) -> bool:
    """Can gpq tell the job to leave, once it has declared itself? A job whose loop is harmed by
    that must leave anyway: the owner comes first."""
    spec = job.spec
    return (
        spec.background
        or spec.level is Level.SIGNAL
        or (spec.level is Level.SCRIPT and not spec.rigid)
    )


def is_over_its_grace(job: Job, reservation: Reservation, snapshot: Snapshot) -> bool:
    """Has an undeclared job had its grace since the owner came? Then it restarts elsewhere from the
    beginning. It has done little since its start, and would otherwise stay for ever."""
    return (
        is_owners(reservation)
        and leaves(job)
        and snapshot.now >= reservation.start + job.spec.grace
    )
