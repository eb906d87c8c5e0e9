"""The text of `gpq nodes`: a table of servers, and a table of their GPUs."""

from __future__ import annotations

from gpq.rpc.node_answers import DeviceView, NodeList, NodeView, ReservationView
from gpq.views.plain import Head, columns, duration, safe, table

NODES = (
    Head("SERVER", 99, least=6), Head("STATE", 98), Head("GPUS", 70, right=True),
    Head("IN USE", 69, right=True), Head("CORES", 50, right=True), Head("MEMORY", 49, right=True),
    Head("SEEN", 60), Head("REASON", 65, least=12),
)  # fmt: skip
DEVICES = (
    Head("SERVER", 95, least=6), Head("GPU", 96, right=True), Head("TYPE", 60, least=8),
    Head("STATE", 98), Head("UTIL", 70, right=True), Head("MEMORY", 69, right=True),
    Head("ON IT", 80, least=8), Head("ID", 20, least=8),
)  # fmt: skip
RESERVATIONS = (
    Head("RESERVATION", 99), Head("SERVER", 98, least=6), Head("GPUS", 97),
    Head("FOR", 96, least=6), Head("BEGINS", 90), Head("ENDS", 89), Head("BY", 20, least=6),
)  # fmt: skip


def lines(answer: NodeList, limit: int, bar: str = "█") -> list[str]:
    """`bar` is unused, but every view has this signature."""
    if not answer.nodes:
        return ["no servers"]
    nodes, devices = [], []
    for node in answer.nodes:
        in_use = sum(device.job is not None for device in node.devices)
        # attempts that are not in the database may show another use
        reasons = (node.reason, *node.strangers, *node.damage)
        row = (
            safe(node.name), safe(node.state), str(len(node.devices)), str(in_use),
            str(node.cores), gib(node.memory_mib), last_seen(node),
            ", ".join(map(safe, filter(None, reasons))),
        )  # fmt: skip
        nodes.append(row)
        for device in node.devices:
            device_row = (
                safe(node.name), str(device.index), safe(device.type), safe(device.state),
                utilisation(device), memory(device), _on_it(node, device, answer.reservations),
                safe(device.id),
            )  # fmt: skip
            devices.append(device_row)
    reservations = [
        (
            str(entry.id), safe(entry.node), ",".join(map(str, entry.indices)) or "all",
            safe(entry.user) or "nobody", _in(entry.begins_in_seconds), _in(entry.ends_in_seconds),
            safe(entry.by) or "-",
        )
        for entry in answer.reservations
    ]  # fmt: skip
    text = table(columns(NODES, nodes), limit)
    if devices:
        text += ["", *table(columns(DEVICES, devices), limit)]
    if reservations:
        text += ["", *table(columns(RESERVATIONS, reservations), limit)]
    return text


def last_seen(node: NodeView) -> str:
    """`5s ago`, or `never` if the server has not answered since the daemon started."""
    if not node.answers and not node.seen_seconds:
        return "never"
    return f"{duration(node.seen_seconds)} ago"


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
    if occupancy != "-" or not owners:
        owners.insert(0, occupancy)
    return ", ".join(owners)


def _in(seconds: float) -> str:
    return f"in {duration(seconds)}" if seconds > 0 else "now"


def utilisation(device: DeviceView) -> str:
    return f"{device.utilisation}%" if device.utilisation is not None else "-"


def memory(device: DeviceView) -> str:
    """`31G/80G`. A CPU slot has only a size."""
    if device.kind == "cpu" and not device.used_mib:
        return gib(device.memory_mib)
    if not device.memory_mib:
        return "-"
    return f"{gib(device.used_mib)}/{gib(device.memory_mib)}"


def gib(mib: int) -> str:
    if not mib or mib >= 10240:
        return f"{mib / 1024:.0f}G"
    return f"{mib / 1024:.1f}G"


def occupant(device: DeviceView) -> str:
    """The job or the foreign process on it, or why it is not used, since when and until when."""
    parts = []
    if device.job is not None:
        parts.append(f"job {device.job}")
    if not device.reason.startswith(("used by ", "also used by ")):
        parts += [
            f"{safe(process.user)}: {safe(process.name)} (pid {process.pid})"
            for process in device.processes
            if process.job is None
        ]
    parts.append(safe(device.reason))  # the reason names the processes and their times
    if device.state not in ("ok", "foreign") and device.age_seconds is not None:
        parts.append(f"for {duration(device.age_seconds)}")
    if device.next_probe_seconds is not None:
        parts.append(f"next check in {duration(device.next_probe_seconds)}")
    return ", ".join(filter(None, parts)) or "-"
