"""The text of `gpq nodes`: a table of servers, and one of their GPUs."""

from __future__ import annotations

from gpq.rpc.node_answers import DeviceView, NodeList, NodeView, ReservationView
from gpq.views.plain import Column, duration, safe, table


def lines(answer: NodeList, limit: int, bar: str = "█") -> list[str]:
    """`bar` is not used: the signature is that of all views."""
    if not answer.nodes:
        return ["no servers"]
    text = table(_nodes(answer.nodes), limit)
    rows = [(node, device) for node in answer.nodes for device in node.devices]
    text += ["", *table(_devices(rows, answer.reservations), limit)] if rows else []
    return (
        [*text, "", *table(_reservations(answer.reservations), limit)]
        if answer.reservations
        else text
    )


def _nodes(nodes: list[NodeView]) -> list[Column]:
    return [
        Column("SERVER", [safe(node.name) for node in nodes], 99, least=6),
        Column("STATE", [safe(node.state) for node in nodes], 98),
        Column("GPUS", [str(len(node.devices)) for node in nodes], 70, right=True),
        Column(
            "IN USE",
            [str(sum(1 for device in node.devices if device.job)) for node in nodes],
            69,
            right=True,
        ),
        Column("CORES", [str(node.cores) for node in nodes], 50, right=True),
        Column("MEMORY", [gib(node.memory_mib) for node in nodes], 49, right=True),
        Column("SEEN", [seen(node) for node in nodes], 60),
        Column("REASON", [_reason(node) for node in nodes], 65, least=12),
    ]


def seen(node: NodeView) -> str:
    """`5s ago`; `never` of a server that was not heard of since the daemon's start."""
    never = not node.answers and not node.seen_seconds
    return "never" if never else f"{duration(node.seen_seconds)} ago"


def _reason(node: NodeView) -> str:
    """Attempts that are not in the database do not show on devices where those are in other use."""
    return "; ".join(safe(part) for part in (node.reason, *node.strangers, *node.damage) if part)


def _devices(
    rows: list[tuple[NodeView, DeviceView]], reservations: list[ReservationView]
) -> list[Column]:
    return [
        Column("SERVER", [safe(node.name) for node, _ in rows], 95, least=6),
        Column("GPU", [str(device.index) for _, device in rows], 96, right=True),
        Column("TYPE", [safe(device.type) for _, device in rows], 60, least=8),
        Column("STATE", [safe(device.state) for _, device in rows], 98),
        Column("UTIL", [utilisation(device) for _, device in rows], 70, right=True),
        Column("MEMORY", [memory(device) for _, device in rows], 69, right=True),
        Column("ON IT", [_on_it(node, device, reservations) for node, device in rows], 80, least=8),
        Column("ID", [safe(device.id) for _, device in rows], 20, least=8),
    ]


def _on_it(node: NodeView, device: DeviceView, reservations: list[ReservationView]) -> str:
    """Who is on it, and for whom it is kept now."""
    owners = [
        f"reserved for {safe(reservation.user) or 'nobody'}"
        for reservation in reservations
        if reservation.node == node.name
        and reservation.begins_in_seconds <= 0
        and (not reservation.devices or device.id in reservation.devices)
    ]
    occupancy = occupant(device)
    return "; ".join([*([] if occupancy == "-" and owners else [occupancy]), *owners])


def _reservations(reservations: list[ReservationView]) -> list[Column]:
    return [
        Column("RESERVATION", [str(reservation.id) for reservation in reservations], 99),
        Column("SERVER", [safe(reservation.node) for reservation in reservations], 98, least=6),
        Column(
            "GPUS",
            [",".join(map(str, reservation.indices)) or "all" for reservation in reservations],
            97,
        ),
        Column(
            "FOR", [safe(reservation.user) or "nobody" for reservation in reservations], 96, least=6
        ),
        Column("BEGINS", [_in(reservation.begins_in_seconds) for reservation in reservations], 90),
        Column("ENDS", [_in(reservation.ends_in_seconds) for reservation in reservations], 89),
        Column("BY", [safe(reservation.by) or "-" for reservation in reservations], 20, least=6),
    ]


def _in(seconds: float) -> str:
    return f"in {duration(seconds)}" if seconds > 0 else "now"


def utilisation(device: DeviceView) -> str:
    return "-" if device.utilisation is None else f"{device.utilisation}%"


def memory(device: DeviceView) -> str:
    """`31G/80G`; of a CPU slot only the size is known."""
    if device.kind == "cpu" and not device.used_mib:
        return gib(device.memory_mib)
    return f"{gib(device.used_mib)}/{gib(device.memory_mib)}" if device.memory_mib else "-"


def gib(mib: int) -> str:
    if not mib:
        return "0G"
    return f"{mib / 1024:.0f}G" if mib >= 10240 else f"{mib / 1024:.1f}G"


def occupant(device: DeviceView) -> str:
    """The job on it, or who else, or why nothing may be, since when and until when."""
    strangers = [process for process in device.processes if process.job is None]
    stranger_names = ", ".join(
        f"{safe(stranger.user)}: {safe(stranger.name)} (pid {stranger.pid})"
        for stranger in strangers
    )
    job = f"job {device.job}" if device.job is not None else ""
    # who and since when: the same, and more
    is_named = device.reason.startswith(("used by ", "also used by "))
    parts = [job, "" if is_named else stranger_names, safe(device.reason)]
    if device.state not in ("ok", "foreign") and device.age_seconds is not None:
        parts.append(f"for {duration(device.age_seconds)}")
    if device.next_probe_seconds is not None:
        parts.append(f"next look in {duration(device.next_probe_seconds)}")
    return "; ".join(part for part in parts if part) or "-"
