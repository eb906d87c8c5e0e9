"""Requests to drain or undrain a server -> events and an answer, or a refusal that changed nothing.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.core.model.events import Event, NodeDrained, NodeUndrained
from gpq.core.model.jobs import HOLDS_DEVICES, Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds
from gpq.errors import NotFound, UsageError
from gpq.rpc.node_answers import Drained

MAX_REASON = 500  # characters


def known(snapshot: Snapshot, name: str) -> NodeId:
    """Raises NotFound if there is no such server."""
    node = NodeId(name)
    if node not in snapshot.nodes:
        node_names = ", ".join(sorted(snapshot.nodes)) or "none has answered yet"
        raise NotFound(f"there is no server `{name}`", f"known servers: {node_names}")
    return node


def drain(
    snapshot: Snapshot, name: str, reason: str, now: Seconds, by: str
) -> tuple[list[Event], Drained]:
    """Repeating it does no harm. Another reason replaces the previous one. Raises NotFound,
    UsageError."""
    node = known(snapshot, name)
    if len(reason) > MAX_REASON or any(not sign.isprintable() for sign in reason):
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
        name,
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
        if job.state in HOLDS_DEVICES and node in _servers(job)
    ]


def _servers(job: Job) -> list[NodeId]:
    if job.placement is None:
        return []
    return [node for node, _ in job.placement.parts]


def by_movability(jobs: Sequence[Job]) -> tuple[list[int], list[int]]:
    """(jobs that can move elsewhere, jobs that stay until they end)."""
    leaving = [int(job.id) for job in jobs if job.movable]
    staying = [int(job.id) for job in jobs if not job.movable]
    return leaving, staying


def undrain(snapshot: Snapshot, name: str, now: Seconds, by: str) -> tuple[list[Event], Drained]:
    """Repeating it does no harm. Raises NotFound."""
    node = known(snapshot, name)
    events: list[Event] = []
    if node in snapshot.drained:
        events.append(NodeUndrained(now, node, by))
    return events, Drained(name, drained=False, changed=bool(events))
