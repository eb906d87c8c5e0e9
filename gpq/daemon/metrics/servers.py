"""Metrics of servers and their GPUs: their state and their load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from gpq.control.answers.reader import Reader
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.model.nodes import DeviceState
from gpq.daemon.metrics.families import gauge
from gpq.rpc.node_answers import DeviceView, NodeView

MIB = float(1 << 20)
ILL = tuple(str(state) for state in DeviceState if state is not DeviceState.OK)
STANDINGS = ("held", "free", *ILL, "drained", "reserved", "unknown")


def gpus(reader: Reader, nodes: list[NodeView]) -> Iterator[Metric]:
    devices = [(node, device) for node in nodes for device in node.devices]
    yield _states(reader, nodes)
    yield gauge("gpq_gpu_info", "Always 1, about a GPU.", ["node", "gpu", "uuid", "type"], [
        ((node.name, str(device.index), device.id, device.type), 1.0) for node, device in devices
    ])  # fmt: skip
    answering_devices = [(node, device) for node, device in devices if node.answers]
    for name, documentation, value_of in (
        ("utilisation_ratio", "Part of the time in which the GPU was busy.", _utilisation),
        ("memory_bytes", "Memory of the GPU.", _memory),
        ("memory_used_bytes", "Memory in use by any process.", _used),
    ):
        yield gauge(f"gpq_gpu_{name}", documentation, ["node", "gpu"], [
            ((node.name, str(device.index)), value_of(device)) for node, device in answering_devices
        ])  # fmt: skip


def _states(reader: Reader, nodes: list[NodeView]) -> Metric:
    reserved_gpus = _reserved(reader)
    counts = Counter(
        (node.name, standing(node, device, reserved_gpus))
        for node in nodes
        for device in node.devices
    )
    return gauge(
        "gpq_gpus",
        "GPUs or CPU slots of a server by state.",
        ["node", "state"],
        [((node.name, state), counts[node.name, state]) for node in nodes for state in STANDINGS],
    )


def _reserved(reader: Reader) -> set[tuple[str, str]]:
    """(node, device) of everything that is reserved now."""
    return {
        (str(reservation.node), str(device))
        for reservation in current(reader.snapshot, reader.now)
        if reservation.start <= reader.now
        for device in devices_of(reservation, reader.snapshot.nodes.get(reservation.node))
    }


def _utilisation(device: DeviceView) -> float | None:
    if device.utilisation is None:
        return None
    return device.utilisation / 100.0


def _memory(device: DeviceView) -> float | None:
    return device.memory_mib * MIB or None


def _used(device: DeviceView) -> float | None:
    if not device.memory_mib:
        return None
    return device.used_mib * MIB


def standing(node: NodeView, device: DeviceView, reserved_gpus: set[tuple[str, str]]) -> str:
    """One word for the state of a GPU. The strongest obstacle wins."""
    if device.job is not None:
        return "held"
    if not node.answers:
        return "unknown"
    if device.state != "ok":
        return device.state
    if node.drained:
        return "drained"
    return "reserved" if (node.name, device.id) in reserved_gpus else "free"


def availability(nodes: list[NodeView]) -> Iterator[Metric]:
    for name, documentation, value_of in (
        ("up", "1 while the server answers.", lambda node: float(node.answers)),
        ("drained", "1 while gpq starts nothing new there.", lambda node: float(node.drained)),
        (
            "knowledge_age_seconds",
            "Time since the daemon last heard from the server.",
            lambda node: node.seen_seconds,
        ),
    ):
        yield gauge(
            f"gpq_node_{name}",
            documentation,
            ["node"],
            [((node.name,), value_of(node)) for node in nodes],
        )
