"""Requests to reserve GPUs of a node and to undo it -> events and an answer, or a refusal that
changed nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpq.control import event_text
from gpq.control.requests.drain import known
from gpq.core.feasibility.device_status import place_of
from gpq.core.feasibility.owners import is_owners
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.model.events import Event, NodeReserved, NodeUnreserved
from gpq.core.model.jobs import HOLDS_DEVICES
from gpq.core.model.nodes import Device, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, Seconds
from gpq.errors import NotFound, Refused, UsageError
from gpq.rpc.node_answers import ReservationView, Reserved

LONGEST: Seconds = 366 * 86400.0
MOST = 1000  # reservations at a time
USER = re.compile(r"[^\s/:]{1,64}")


def reserve(
    snapshot: Snapshot,
    name: str,
    gpus: Sequence[str],
    user: str,
    start: Seconds,
    end: Seconds,
    now: Seconds,
    by: str,
) -> tuple[list[Event], Reserved]:
    """`gpus`: indices or UUIDs, none: all of the node. Raises NotFound, Refused, UsageError."""
    node = snapshot.nodes[known(snapshot, name)]
    if user and not (USER.fullmatch(user) and user.isprintable()):
        raise UsageError(
            f"--for {user[:80]!r} is no user",
            "e.g. --for ana; without it gpq leaves the GPUs alone",
        )
    start = max(start, now)
    if not start < end <= now + LONGEST:
        raise UsageError(
            "a reservation ends after it begins, and within a year",
            "e.g. --from 'fri 18:00' --for-duration 2d",
        )
    devices = tuple(_device(name, node.devices, each) for each in gpus)
    if len(set(devices)) != len(devices):
        raise UsageError(f"{name}:{','.join(gpus)} names a GPU twice", "name each once")
    wanted = Reservation(snapshot.next_reservation, node.id, start, end, devices, user, by)
    mine = set(devices_of(wanted, node))
    for other in (each for each in current(snapshot, now) if not is_owners(each)):
        both = mine & set(devices_of(other, node)) if other.node == node.id else set()
        if both and other.start < end and start < other.end:
            raise Refused(
                f"{place_of(other, node)} is reserved then already: {_whom(other)}, reservation"
                f" {other.id}",
                f"`gpq nodes unreserve {other.id}` undoes that",
            )
    if len(current(snapshot, now)) >= MOST:
        raise Refused(
            f"there are {MOST} reservations already", "`gpq nodes unreserve ID` undoes one"
        )
    on_it = [
        job
        for _, job in sorted(snapshot.jobs.items())
        if job.state in HOLDS_DEVICES
        and job.placement is not None
        and job.spec.user != user
        and any((node.id, device) in job.placement.devices for device in mine)
    ]
    leaving = [int(job.id) for job in on_it if job.movable]
    staying = [int(job.id) for job in on_it if not job.movable]
    return [NodeReserved(now, wanted)], Reserved(view(snapshot, wanted, now), leaving, staying)


def unreserve(
    snapshot: Snapshot, number: int, now: Seconds, by: str
) -> tuple[list[Event], Reserved]:
    """Raises NotFound for a reservation that there is not, or that is over."""
    held = next((each for each in current(snapshot, now) if each.id == number), None)
    if held is not None and is_owners(held):
        raise Refused(
            f"server {held.node} is {held.user}'s, who is there",
            "it is given back when they have gone",
        )
    if held is None:
        there = ", ".join(str(each.id) for each in current(snapshot, now)) or "none"
        raise NotFound(f"there is no reservation {number}", f"there is: {there}")
    return [NodeUnreserved(now, number, by)], Reserved(view(snapshot, held, now))


def view(snapshot: Snapshot, held: Reservation, now: Seconds) -> ReservationView:
    node = snapshot.nodes.get(held.node)
    indices = {device.id: device.index for device in node.devices} if node is not None else {}
    return ReservationView(
        id=held.id,
        node=str(held.node),
        devices=[str(device) for device in held.devices],
        indices=[indices.get(device, -1) for device in held.devices],
        user=held.user,
        start=event_text.stamp(held.start),
        end=event_text.stamp(held.end),
        begins_in_seconds=max(held.start - now, 0.0),
        ends_in_seconds=max(held.end - now, 0.0),
        by=held.by,
    )


def _whom(held: Reservation) -> str:
    return f"for {held.user}" if held.user else "left alone by gpq"


def _device(node: str, devices: Sequence[Device], word: str) -> DeviceId:
    for device in devices:
        if word in (device.id, str(device.index)):
            return device.id
    there = ", ".join(str(device.index) for device in devices) or "none"
    raise NotFound(f"there is no GPU {word[:80]} on server `{node}`", f"there is: {there}")
