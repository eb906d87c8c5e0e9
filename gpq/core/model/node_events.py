"""Facts about servers: what users asked of them, and what they reported. `events` names all of them
too."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.units import NodeId, Seconds


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """gpq starts nothing new there. A second request changes the reason."""

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
    since: Seconds = 0.0  # last heard of. 0 means `at`


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    at: Seconds
    node: NodeId


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """Somebody timed an all-reduce between two servers. `nodes` are sorted."""

    at: Seconds
    nodes: tuple[NodeId, NodeId]
    latency: Seconds
    bandwidth: float  # bytes per second
    backend: str = "gloo"


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """A server checked for what jobs need there."""

    at: Seconds
    node: NodeId
    environment: str
    fit: bool
    reason: str = ""
    fix: str = ""
