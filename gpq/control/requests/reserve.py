"""Requests to reserve GPUs of a server, or to undo that -> events and an answer, or a refusal that
changed nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpq.control import event_text
from gpq.control.requests.drain import by_movability, known, occupants
from gpq.core.feasibility.device_status import place_of
from gpq.core.feasibility.owners import is_owners
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.model.events import Event, NodeReserved, NodeUnreserved
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Device, Node, Reservation
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
    """`gpus` are indices or UUIDs. None of them means the whole server. Raises NotFound, Refused,
    UsageError."""
    node = snapshot.nodes[known(snapshot, name)]
    _check_user(user)
    start = max(start, now)
    if not start < end <= now + LONGEST:
        raise UsageError(
            "a reservation must end after it starts, and within a year",
            "e.g. --from 'fri 18:00' --for-duration 2d",
        )
    devices = tuple(_device(name, node.devices, word) for word in gpus)
    if len(set(devices)) != len(devices):
        raise UsageError(f"{name}:{','.join(gpus)} names a GPU twice", "name each once")
    reservation = Reservation(snapshot.next_reservation, node.id, start, end, devices, user, by)
    _refuse_overlap(snapshot, node, reservation, now)
    if len(current(snapshot, now)) >= MOST:
        raise Refused(
            f"there are already {MOST} reservations", "`gpq nodes unreserve ID` removes one"
        )
    leaving, staying = by_movability(_displaced_jobs(snapshot, node, reservation))
    return [NodeReserved(now, reservation)], Reserved(
        view(snapshot, reservation, now), leaving, staying
    )


def _check_user(user: str) -> None:
    """Raises UsageError."""
    if user and not (USER.fullmatch(user) and user.isprintable()):
        raise UsageError(
            f"--for {user[:80]!r} is not a user",
            "e.g. --for ana. Without --for, gpq leaves the GPUs alone",
        )


def _refuse_overlap(snapshot: Snapshot, node: Node, reservation: Reservation, now: Seconds) -> None:
    """Raises Refused if some of these GPUs are already reserved at that time."""
    device_ids = set(devices_of(reservation, node))
    for rival in current(snapshot, now):
        if is_owners(rival) or rival.node != node.id:
            continue
        shares_devices = not device_ids.isdisjoint(devices_of(rival, node))
        if shares_devices and rival.start < reservation.end and reservation.start < rival.end:
            raise Refused(
                f"{place_of(rival, node)} {'are' if len(rival.devices) > 1 else 'is'} already"
                f" reserved at that time {_whom(rival)} (reservation {rival.id})",
                f"`gpq nodes unreserve {rival.id}` removes that reservation",
            )


def _displaced_jobs(snapshot: Snapshot, node: Node, reservation: Reservation) -> list[Job]:
    """Other users' jobs that have these GPUs, by id."""
    places = {(node.id, device) for device in devices_of(reservation, node)}
    return [
        job
        for job in occupants(snapshot, node.id)
        if job.spec.user != reservation.user
        and job.placement is not None
        and not places.isdisjoint(job.placement.devices)
    ]


def unreserve(
    snapshot: Snapshot, number: int, now: Seconds, by: str
) -> tuple[list[Event], Reserved]:
    """Raises NotFound for a reservation that does not exist or is over."""
    reservation = next(
        (candidate for candidate in current(snapshot, now) if candidate.id == number), None
    )
    if reservation is not None and is_owners(reservation):
        raise Refused(
            f"server {reservation.node} belongs to {reservation.user}, who is using it",
            "gpq uses it again when its owner has left",
        )
    if reservation is None:
        numbers = ", ".join(str(candidate.id) for candidate in current(snapshot, now)) or "none"
        raise NotFound(f"there is no reservation {number}", f"current reservations: {numbers}")
    return [NodeUnreserved(now, number, by)], Reserved(view(snapshot, reservation, now))


def view(snapshot: Snapshot, reservation: Reservation, now: Seconds) -> ReservationView:
    node = snapshot.nodes.get(reservation.node)
    indices: dict[DeviceId, int] = {}
    if node is not None:
        indices = {device.id: device.index for device in node.devices}
    return ReservationView(
        id=reservation.id,
        node=str(reservation.node),
        devices=[str(device) for device in reservation.devices],
        indices=[indices.get(device, -1) for device in reservation.devices],
        user=reservation.user,
        start=event_text.stamp(reservation.start),
        end=event_text.stamp(reservation.end),
        begins_in_seconds=max(reservation.start - now, 0.0),
        ends_in_seconds=max(reservation.end - now, 0.0),
        by=reservation.by,
    )


def _whom(reservation: Reservation) -> str:
    return f"for {reservation.user}" if reservation.user else "and kept from gpq"


def _device(node: str, devices: Sequence[Device], word: str) -> DeviceId:
    for device in devices:
        if word in (device.id, str(device.index)):
            return device.id
    indices = ", ".join(str(device.index) for device in devices) or "none"
    raise NotFound(f"there is no GPU {word[:80]} on server `{node}`", f"it has: {indices}")
