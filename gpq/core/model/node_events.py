"""Facts about nodes: what users asked of them, and what was heard of them. All are named in
`events` too."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.units import NodeId, Seconds


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Nothing new is to be placed there; asked again, it changes the reason."""

    at: Seconds
    node: NodeId
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    at: Seconds
    node: NodeId
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeReserved:
    at: Seconds
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class NodeUnreserved:
    at: Seconds
    id: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    at: Seconds
    node: Node


@dataclass(frozen=True, slots=True)
class NodeSilent:
    at: Seconds
    node: NodeId
    reason: str
    since: Seconds = 0.0  # last heard of; 0: at `at`


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    at: Seconds
    node: NodeId


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """An all-reduce between two servers was timed; `nodes` are sorted."""

    at: Seconds
    nodes: tuple[NodeId, NodeId]
    latency: Seconds
    bandwidth: float  # bytes a second
    backend: str = "gloo"


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """A node looked for what jobs need there."""

    at: Seconds
    node: NodeId
    environment: str
    fit: bool
    reason: str = ""
    fix: str = ""
