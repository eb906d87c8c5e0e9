"""Snapshot -> the rows of servers, and the lines about them at the head of a listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpq.control import event_text
from gpq.core.feasibility.device_status import intruders
from gpq.core.feasibility.leases import line, span
from gpq.core.feasibility.mobility import held_by
from gpq.core.model.nodes import Device, DeviceProcess, Node, NodeState, Orphan, is_connecting
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView

Holders = Mapping[tuple[NodeId, DeviceId], JobId]


def nodes(snapshot: Snapshot, now: Seconds, names: Iterable[str] = ()) -> list[NodeView]:
    """All servers, or the named ones, by name."""
    selection = set(names) or set(snapshot.nodes)
    holders = held_by(snapshot)
    return [
        _node(snapshot, snapshot.nodes[name], holders, now)
        for name in sorted(snapshot.nodes)
        if name in selection
    ]


def _node(snapshot: Snapshot, node: Node, holders: Holders, now: Seconds) -> NodeView:
    return NodeView(
        name=str(node.id),
        state=node_word(snapshot, node, now),
        reason=", ".join(filter(None, (_reason(node, now), _drain_note(snapshot, node)))),
        cores=node.cores,
        memory_mib=node.memory_mib,
        seen_seconds=_age(node.seen_at, now) or 0.0,
        devices=[
            _device(device, holders.get((node.id, device.id)), now) for device in node.devices
        ],
        drained=node.id in snapshot.drained,
        address=node.address,
        strangers=_stranger_lines(node, now),
        damage=list(node.damage),
    )


def _reason(node: Node, now: Seconds) -> str:
    if is_connecting(node, now):
        return "gpq is connecting for the first time since the daemon started"
    return node.reason


def _drain_note(snapshot: Snapshot, node: Node) -> str:
    reason = snapshot.drained.get(node.id, "")
    if reason and node.state is not NodeState.UP:
        return f"drained: {reason}"
    return reason


def node_word(snapshot: Snapshot, node: Node, now: Seconds) -> str:
    """The state to show. Silence comes first, because it is news."""
    if is_connecting(node, now):
        return str(NodeState.CONNECTING)
    if node.state is NodeState.UP and node.id in snapshot.drained:
        return str(NodeState.DRAINED)
    return str(node.state)


def _device(device: Device, holder: JobId | None, now: Seconds) -> DeviceView:
    next_probe_seconds = None
    if device.next_probe:
        next_probe_seconds = max(device.next_probe - now, 0.0)
    return DeviceView(
        id=str(device.id),
        index=device.index,
        kind=device.kind,
        type=device.type,
        memory_mib=device.memory_mib,
        used_mib=device.used_mib,
        utilisation=device.utilisation,
        state=str(device.state),
        reason=device.reason,
        job=None if holder is None else int(holder),
        processes=[_process(process) for process in device.processes],
        since=event_text.maybe_stamp(device.since or None),
        age_seconds=_age(device.since, now),
        next_probe_seconds=next_probe_seconds,
    )


def _process(process: DeviceProcess) -> ProcessView:
    return ProcessView(
        process.pid,
        process.user,
        process.name,
        process.memory_mib,
        _job_of(process.attempt),
        process.command,
        event_text.maybe_stamp(process.since or None),
    )


def _job_of(attempt: str) -> int | None:
    job = attempt.partition(".")[0]
    return int(job) if job.isdecimal() and len(job) <= 15 else None


def _age(moment: Seconds, now: Seconds) -> Seconds | None:
    """None for 0, which means never."""
    return max(now - moment, 0.0) if moment else None


# -- lines -----------------------------------------------------------------------------------------


def warnings(snapshot: Snapshot, now: Seconds) -> list[str]:
    """Lines about servers for the head of a listing. A server that gpq contacts for the first time
    gets no line yet."""
    by_name = [node for _, node in sorted(snapshot.nodes.items())]
    return [
        *(_silence_line(node) for node in by_name if _is_silent(node, now)),
        *(warning for node in by_name for warning in _stranger_lines(node, now)),
        *(warning for warning, _ in intruders(snapshot)),
    ]


def _is_silent(node: Node, now: Seconds) -> bool:
    return node.state is NodeState.UNREACHABLE and not is_connecting(node, now)


def _silence_line(node: Node) -> str:
    reason = f": {node.reason}" if node.reason else ""
    return f"server {node.id} does not answer{reason}"


def _stranger_lines(node: Node, now: Seconds) -> list[str]:
    return [line(node.id, stranger, _span(stranger, now)) for stranger in node.strangers]


def _span(stranger: Orphan, now: Seconds) -> str:
    age = _age(stranger.since, now)
    return "a moment" if age is None else span(age)
