"""The text of `gpq nodes`: a table of servers, and a table of their GPUs."""

from __future__ import annotations

from gpq.rpc.node_answers import DeviceView, NodeList, NodeView, ReservationView
from gpq.views.plain import Column, duration, safe, table


def lines(answer: NodeList, limit: int, bar: str = "█") -> list[str]:
    """`bar` is unused, but every view has this signature."""
    if not answer.nodes:
        return ["no servers"]
    text = table(_nodes(answer.nodes), limit)
    pairs = [(node, device) for node in answer.nodes for device in node.devices]
    if pairs:
        text += ["", *table(_devices(pairs, answer.reservations), limit)]
    if answer.reservations:
        text += ["", *table(_reservations(answer.reservations), limit)]
    return text


def last_seen(node: NodeView) -> str:
    """`5s ago`, or `never` if the server has not answered since the daemon started."""
    if not node.answers and not node.seen_seconds:
        return "never"
    return f"{duration(node.seen_seconds)} ago"


def _reason(node: NodeView) -> str:
    """The reason, with attempts that are not in the database. Their GPUs may show another use."""
    return ", ".join(safe(part) for part in (node.reason, *node.strangers, *node.damage) if part)


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


def _nodes(nodes: list[NodeView]) -> list[Column]:
    in_use = [str(sum(device.job is not None for device in node.devices)) for node in nodes]
    return [
        Column("SERVER", [safe(node.name) for node in nodes], 99, least=6),
        Column("STATE", [safe(node.state) for node in nodes], 98),
        Column("GPUS", [str(len(node.devices)) for node in nodes], 70, right=True),
        Column("IN USE", in_use, 69, right=True),
        Column("CORES", [str(node.cores) for node in nodes], 50, right=True),
        Column("MEMORY", [gib(node.memory_mib) for node in nodes], 49, right=True),
        Column("SEEN", [last_seen(node) for node in nodes], 60),
        Column("REASON", [_reason(node) for node in nodes], 65, least=12),
    ]


def _devices(
    pairs: list[tuple[NodeView, DeviceView]], reservations: list[ReservationView]
) -> list[Column]:
    devices = [device for _, device in pairs]
    return [
        Column("SERVER", [safe(node.name) for node, _ in pairs], 95, least=6),
        Column("GPU", [str(device.index) for device in devices], 96, right=True),
        Column("TYPE", [safe(device.type) for device in devices], 60, least=8),
        Column("STATE", [safe(device.state) for device in devices], 98),
        Column("UTIL", [utilisation(device) for device in devices], 70, right=True),
        Column("MEMORY", [memory(device) for device in devices], 69, right=True),
        Column("ON IT", [_on_it(*pair, reservations) for pair in pairs], 80, least=8),
        Column("ID", [safe(device.id) for device in devices], 20, least=8),
    ]


def _reservations(entries: list[ReservationView]) -> list[Column]:
    return [
        Column("RESERVATION", [str(entry.id) for entry in entries], 99),
        Column("SERVER", [safe(entry.node) for entry in entries], 98, least=6),
        Column("GPUS", [",".join(map(str, entry.indices)) or "all" for entry in entries], 97),
        Column("FOR", [safe(entry.user) or "nobody" for entry in entries], 96, least=6),
        Column("BEGINS", [_in(entry.begins_in_seconds) for entry in entries], 90),
        Column("ENDS", [_in(entry.ends_in_seconds) for entry in entries], 89),
        Column("BY", [safe(entry.by) or "-" for entry in entries], 20, least=6),
    ]
