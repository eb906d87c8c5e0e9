"""The text of `gpq nodes`: a table of servers, and a table of their GPUs."""

from __future__ import annotations

from gpq.rpc.node_answers import DeviceView, NodeList, NodeView, ReservationView
from gpq.views.plain import Column, Head, duration, safe, table

NODES = (
    Head("SERVER", 99, least=6),
    Head("STATE", 98),
    Head("GPUS", 70, right=True),
    Head("IN USE", 69, right=True),
    Head("CORES", 50, right=True),
    Head("MEMORY", 49, right=True),
    Head("SEEN", 60),
    Head("REASON", 65, least=12),
)
DEVICES = (
    Head("SERVER", 95, least=6),
    Head("GPU", 96, right=True),
    Head("TYPE", 60, least=8),
    Head("STATE", 98),
    Head("UTIL", 70, right=True),
    Head("MEMORY", 69, right=True),
    Head("ON IT", 80, least=8),
    Head("ID", 20, least=8),
)
RESERVATIONS = (
    Head("RESERVATION", 99),
    Head("SERVER", 98, least=6),
    Head("GPUS", 97),
    Head("FOR", 96, least=6),
    Head("BEGINS", 90),
    Head("ENDS", 89),
    Head("BY", 20, least=6),
)


def lines(answer: NodeList, limit: int, bar: str = "█") -> list[str]:
    """`bar` is unused, but every view has this signature."""
    if not answer.nodes:
        return ["no servers"]
    text = table(_nodes(answer.nodes), limit)
    rows = [(node, device) for node in answer.nodes for device in node.devices]
    if rows:
        text += ["", *table(_devices(rows, answer.reservations), limit)]
    if answer.reservations:
        text += ["", *table(_reservations(answer.reservations), limit)]
    return text


def _nodes(nodes: list[NodeView]) -> list[Column]:
    rows = [
        {
            "SERVER": safe(node.name),
            "STATE": safe(node.state),
            "GPUS": str(len(node.devices)),
            "IN USE": str(sum(1 for device in node.devices if device.job)),
            "CORES": str(node.cores),
            "MEMORY": gib(node.memory_mib),
            "SEEN": seen(node),
            "REASON": _reason(node),
        }
        for node in nodes
    ]
    return [head.column(rows) for head in NODES]


def seen(node: NodeView) -> str:
    """`5s ago`, or `never` if the server has not answered since the daemon started."""
    if not node.answers and not node.seen_seconds:
        return "never"
    return f"{duration(node.seen_seconds)} ago"


def _reason(node: NodeView) -> str:
    """The reason, with attempts that are not in the database. Their GPUs may show another use."""
    return ", ".join(safe(part) for part in (node.reason, *node.strangers, *node.damage) if part)


def _devices(
    pairs: list[tuple[NodeView, DeviceView]], reservations: list[ReservationView]
) -> list[Column]:
    rows = [
        {
            "SERVER": safe(node.name),
            "GPU": str(device.index),
            "TYPE": safe(device.type),
            "STATE": safe(device.state),
            "UTIL": utilisation(device),
            "MEMORY": memory(device),
            "ON IT": _on_it(node, device, reservations),
            "ID": safe(device.id),
        }
        for node, device in pairs
    ]
    return [head.column(rows) for head in DEVICES]


def _on_it(node: NodeView, device: DeviceView, reservations: list[ReservationView]) -> str:
    """What uses the GPU, and for whom it is reserved now."""
    owners = [
        f"reserved for {safe(reservation.user) or 'nobody'}"
        for reservation in reservations
        if reservation.node == node.name
        and reservation.begins_in_seconds <= 0
        and (not reservation.devices or device.id in reservation.devices)
    ]
    occupancy = occupant(device)
    if occupancy == "-" and owners:
        return ", ".join(owners)
    return ", ".join([occupancy, *owners])


def _reservations(reservations: list[ReservationView]) -> list[Column]:
    rows = [
        {
            "RESERVATION": str(reservation.id),
            "SERVER": safe(reservation.node),
            "GPUS": ",".join(map(str, reservation.indices)) or "all",
            "FOR": safe(reservation.user) or "nobody",
            "BEGINS": _in(reservation.begins_in_seconds),
            "ENDS": _in(reservation.ends_in_seconds),
            "BY": safe(reservation.by) or "-",
        }
        for reservation in reservations
    ]
    return [head.column(rows) for head in RESERVATIONS]


def _in(seconds: float) -> str:
    if seconds > 0:
        return f"in {duration(seconds)}"
    return "now"


def utilisation(device: DeviceView) -> str:
    if device.utilisation is None:
        return "-"
    return f"{device.utilisation}%"


def memory(device: DeviceView) -> str:
    """`31G/80G`. A CPU slot has only a size."""
    if device.kind == "cpu" and not device.used_mib:
        return gib(device.memory_mib)
    if not device.memory_mib:
        return "-"
    return f"{gib(device.used_mib)}/{gib(device.memory_mib)}"


def gib(mib: int) -> str:
    if not mib:
        return "0G"
    if mib >= 10240:
        return f"{mib / 1024:.0f}G"
    return f"{mib / 1024:.1f}G"


def occupant(device: DeviceView) -> str:
    """The job or the foreign process on it, or why it is not used, since when and until when."""
    parts = []
    if device.job is not None:
        parts.append(f"job {device.job}")
    if not device.reason.startswith(("used by ", "also used by ")):
        parts.append(_strangers(device))
    parts.append(safe(device.reason))  # the reason names the processes and their times
    if device.state not in ("ok", "foreign") and device.age_seconds is not None:
        parts.append(f"for {duration(device.age_seconds)}")
    if device.next_probe_seconds is not None:
        parts.append(f"next check in {duration(device.next_probe_seconds)}")
    return ", ".join(part for part in parts if part) or "-"


def _strangers(device: DeviceView) -> str:
    return ", ".join(
        f"{safe(process.user)}: {safe(process.name)} (pid {process.pid})"
        for process in device.processes
        if process.job is None
    )
