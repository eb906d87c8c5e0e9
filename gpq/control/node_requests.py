"""Requests about servers, to drain them, to reserve their GPUs, or to note a measured link ->
events and an answer, or a refusal that changed nothing. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gpq.control import event_text
from gpq.core.feasibility.device_status import place_of
from gpq.core.feasibility.owners import is_owners
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.model.events import (
    Event,
    LinkMeasured,
    NodeDrained,
    NodeReserved,
    NodeUndrained,
    NodeUnreserved,
)
from gpq.core.model.jobs import HOLDS_DEVICES, Job
from gpq.core.model.nodes import Device, Node, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, NodeId, Seconds
from gpq.errors import NotFound, Refused, UsageError
from gpq.rpc.node_answers import Drained, Kept, ReservationView, Reserved
from gpq.rpc.requests import Drain, Measured, Reserve, Undrain, Unreserve

MAX_REASON = 500  # characters
LONGEST: Seconds = 366 * 86400.0
MOST = 1000  # reservations at a time
USER = re.compile(r"[^\s/:]{1,64}")
BACKENDS = ("gloo", "nccl")


def drain(snapshot: Snapshot, request: Drain, now: Seconds, by: str) -> tuple[list[Event], Drained]:
    """Repeating it does no harm. Another reason replaces the previous one. Raises NotFound,
    UsageError."""
    node, reason = find_node(snapshot, request.node), request.reason
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise UsageError(
            f"--reason must be one line of at most {MAX_REASON} characters",
            "e.g. --reason 'new driver'",
        )
    old_reason = snapshot.drained.get(node)
    new_reason = reason or old_reason or ""
    events: list[Event] = []
    if old_reason != new_reason:
        events.append(NodeDrained(now, node, new_reason, by))
    leaving, staying = by_movability(occupants(snapshot, node))
    return events, Drained(
        request.node,
        drained=True,
        changed=bool(events),
        reason=new_reason,
        leaving=leaving,
        staying=staying,
    )


def occupants(snapshot: Snapshot, node: NodeId) -> list[Job]:
    """The jobs that have GPUs of this server, by id."""
    return [
        job
        for _, job in sorted(snapshot.jobs.items())
        if job.state in HOLDS_DEVICES and node in job.nodes
    ]


def by_movability(jobs: Sequence[Job]) -> tuple[list[int], list[int]]:
    """(jobs that can move elsewhere, jobs that stay until they end)."""
    leaving = [int(job.id) for job in jobs if job.movable]
    staying = [int(job.id) for job in jobs if not job.movable]
    return leaving, staying


def find_node(snapshot: Snapshot, name: str) -> NodeId:
    """Raises NotFound if there is no such server."""
    node = NodeId(name)
    if node not in snapshot.nodes:
        node_names = ", ".join(sorted(snapshot.nodes)) or "none has answered yet"
        raise NotFound(f"there is no server `{name}`", f"known servers: {node_names}")
    return node


def reservation_view(snapshot: Snapshot, reservation: Reservation, now: Seconds) -> ReservationView:
    node = snapshot.nodes.get(reservation.node)
    devices = node.devices if node is not None else ()
    indices = {device.id: device.index for device in devices}
    return ReservationView(
        id=reservation.id,
        node=str(reservation.node),
        devices=list(map(str, reservation.devices)),
        indices=[indices.get(device, -1) for device in reservation.devices],
        user=reservation.user,
        start=event_text.stamp(reservation.start),
        end=event_text.stamp(reservation.end),
        begins_in_seconds=max(reservation.start - now, 0.0),
        ends_in_seconds=max(reservation.end - now, 0.0),
        by=reservation.by,
    )


def undrain(
    snapshot: Snapshot, request: Undrain, now: Seconds, by: str
) -> tuple[list[Event], Drained]:
    """Repeating it does no harm. Raises NotFound."""
    node = find_node(snapshot, request.node)
    events: list[Event] = []
    if node in snapshot.drained:
        events.append(NodeUndrained(now, node, by))
    return events, Drained(request.node, drained=False, changed=bool(events))


def reserve(
    snapshot: Snapshot, request: Reserve, now: Seconds, by: str
) -> tuple[list[Event], Reserved]:
    """Raises NotFound, Refused, UsageError."""
    name, gpus, user, end = request.node, request.gpus, request.user, request.end
    node = snapshot.nodes[find_node(snapshot, name)]
    if user and not (USER.fullmatch(user) and user.isprintable()):
        raise UsageError(
            f"--for {user[:80]!r} is not a user",
            "e.g. --for ana. Without --for, gpq leaves the GPUs alone",
        )
    start = max(request.start, now)
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
    places = {(node.id, device) for device in devices_of(reservation, node)}
    leaving, staying = by_movability(
        [
            job
            for job in occupants(snapshot, node.id)
            if job.spec.user != user
            and job.placement is not None
            and not places.isdisjoint(job.placement.devices)
        ]
    )
    return [NodeReserved(now, reservation)], Reserved(
        reservation_view(snapshot, reservation, now), leaving, staying
    )


def _refuse_overlap(snapshot: Snapshot, node: Node, reservation: Reservation, now: Seconds) -> None:
    """Raises Refused if some of these GPUs are already reserved at that time."""
    device_ids = set(devices_of(reservation, node))
    for rival in current(snapshot, now):
        is_apart = (
            is_owners(rival)
            or rival.node != node.id
            or not (rival.start < reservation.end and reservation.start < rival.end)
        )
        if not is_apart and not device_ids.isdisjoint(devices_of(rival, node)):
            verb = "are" if len(rival.devices) > 1 else "is"
            beneficiary = f"for {rival.user}" if rival.user else "and kept from gpq"
            raise Refused(
                f"{place_of(rival, node)} {verb} already reserved at that time {beneficiary}"
                f" (reservation {rival.id})",
                f"`gpq nodes unreserve {rival.id}` removes that reservation",
            )


def unreserve(
    snapshot: Snapshot, request: Unreserve, now: Seconds, by: str
) -> tuple[list[Event], Reserved]:
    """Raises NotFound for a reservation that does not exist or is over."""
    number = request.id
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
    return [NodeUnreserved(now, number, by)], Reserved(reservation_view(snapshot, reservation, now))


def _device(node: str, devices: Sequence[Device], word: str) -> DeviceId:
    for device in devices:
        if word in (device.id, str(device.index)):
            return device.id
    indices = ", ".join(str(device.index) for device in devices) or "none"
    raise NotFound(f"there is no GPU {word[:80]} on server `{node}`", f"it has: {indices}")


def record_link(
    snapshot: Snapshot, request: Measured, now: Seconds, by: str
) -> tuple[list[Event], Kept]:
    """The newest measurement of a pair replaces the previous one. Raises NotFound, UsageError."""
    ends = sorted({find_node(snapshot, name) for name in request.nodes})
    if len(ends) != 2 or len(request.nodes) != 2:
        raise UsageError("a link has two ends", "name two different servers")
    if request.backend not in BACKENDS:
        raise UsageError(
            f"unknown backend `{request.backend}`", f"use one of {', '.join(BACKENDS)}"
        )
    for number, least, most in ((request.latency, 1e-9, 1e3), (request.bandwidth, 1.0, 1e15)):
        if not (math.isfinite(number) and least <= number <= most):
            raise UsageError(
                f"invalid measurement {number:g}",
                "give the latency in seconds and the bandwidth in bytes a second",
            )
    event = LinkMeasured(
        now, (ends[0], ends[1]), request.latency, request.bandwidth, request.backend
    )
    return [event], Kept(list(map(str, ends)))
