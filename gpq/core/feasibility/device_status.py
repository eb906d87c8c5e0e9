"""What is wrong with devices, in sentences: who uses them, who reserved them, which fault they
have, and until when."""

from __future__ import annotations

from collections.abc import Iterator

from gpq.core.feasibility import owners
from gpq.core.feasibility.leases import span
from gpq.core.feasibility.mobility import UNKNOWN, held_by
from gpq.core.feasibility.owners import presence
from gpq.core.model.jobs import Job, JobSpec
from gpq.core.model.nodes import Device, DeviceState, Node, NodeState, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds

MOST_LINES = 6


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def drain_line(snapshot: Snapshot, node: NodeId) -> str:
    reason = snapshot.drained[node]
    if reason:
        return f"server {node} is drained: {reason}"
    return f"server {node} is drained"


def drain_lines(snapshot: Snapshot) -> list[str]:
    """Lines for all configured servers that are drained."""
    names = snapshot.drained.keys() & snapshot.nodes.keys()
    return [drain_line(snapshot, name) for name in sorted(names)]


def device_name(node: NodeId, device: Device) -> str:
    """``GPU 2 of ada``."""
    return f"{'GPU' if device.kind == 'cuda' else 'CPU slot'} {device.index} of {node}"


def condition(node: NodeId, device: Device, now: Seconds) -> str:
    """``GPU 2 of ada is used by carl (python, 11 GiB, since 14:02)``, or "" for a usable device."""
    match device.state:
        case DeviceState.OK:
            return ""
        case DeviceState.FOREIGN:
            return f"{device_name(node, device)} is {device.reason or 'used by somebody else'}"
        case _:
            details = ", ".join(_details(device, now))
            if details:
                return f"{device_name(node, device)} is {device.state}: {details}"
            return f"{device_name(node, device)} is {device.state}"


def _details(device: Device, now: Seconds) -> Iterator[str]:
    """Why nobody may use it, for how long, and until when."""
    if device.reason:
        yield device.reason
    if device.since:
        yield f"for {span(now - device.since)}"
    if device.next_probe:
        yield f"next check in {span(max(device.next_probe - now, 0.0))}"


def out_of_use(snapshot: Snapshot, spec: JobSpec) -> list[str]:
    """Sentences about devices that would suit a job but are out of use: the first few, on servers
    that answer."""
    sentences = [
        condition(node.id, device, snapshot.now)
        for node in _answering(snapshot)
        for device in node.devices
        if device.state is not DeviceState.OK
        and spec.gpu_type.casefold() in device.type.casefold()
        and device.memory_mib >= spec.min_gpu_memory_mib
    ]
    if len(sentences) <= MOST_LINES:
        return sentences
    overflow = f"and {len(sentences) - MOST_LINES} more GPUs are out of use"
    return [*sentences[:MOST_LINES], overflow]


def intruders(snapshot: Snapshot, only: Job | None = None) -> list[tuple[str, JobId]]:
    """Sentences about GPUs that somebody else uses next to our jobs, with the id of the job."""
    holders = held_by(snapshot)
    intrusions = []
    for node in _answering(snapshot):
        for device in node.devices:
            holder = holders.get((node.id, device.id))
            if holder is None or not device.reason or device.state is not DeviceState.OK:
                continue
            if only is None or only.id == holder:
                intrusions.append(
                    (
                        (
                            f"{device_name(node.id, device)}, where job {holder} runs, is"
                            f" {device.reason}"
                        ),
                        holder,
                    )
                )
    return intrusions


def _answering(snapshot: Snapshot) -> list[Node]:
    return [
        node
        for _, node in sorted(snapshot.nodes.items())
        if node.state is not NodeState.UNREACHABLE
    ]


def reservation_line(snapshot: Snapshot, reservation: Reservation) -> str:
    """``GPUs 0, 1 of ada are reserved for ana starting in 40 m, for 2 d (reservation 3)``."""
    node, now = snapshot.nodes.get(reservation.node, UNKNOWN), snapshot.now
    if owners.is_owners(reservation):
        return (
            f"server {reservation.node} belongs to {reservation.user}, who"
            f" {presence(node) or 'is there'} (for {span(now - reservation.start)})"
        )
    verb = "are" if len(reservation.devices) > 1 else "is"
    whom = "and kept from gpq"
    if reservation.user:
        whom = f"for {reservation.user}"
    if now >= reservation.start:
        when = f"for another {span(reservation.end - now)}"
    else:
        length = span(reservation.end - reservation.start)
        when = f"starting in {span(reservation.start - now)}, for {length}"
    place = place_of(reservation, node)
    return f"{place} {verb} reserved {whom} {when} (reservation {reservation.id})"


def place_of(reservation: Reservation, node: Node | None) -> str:
    """``server ada``, ``GPU 0 of ada``, ``GPUs 0, 1 of ada``."""
    if not reservation.devices:
        return f"server {reservation.node}"
    indices = {device.id: str(device.index) for device in node.devices} if node is not None else {}
    plural = "s" if len(reservation.devices) > 1 else ""
    numbers = ", ".join(indices.get(device, str(device)) for device in reservation.devices)
    return f"GPU{plural} {numbers} of {reservation.node}"
