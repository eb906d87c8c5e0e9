"""Orders, imperative. Each is idempotent by (job, attempt): performing one twice is performing it
once."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.jobs import JobSpec, StopReason
from gpq.core.model.placements import BatchOrder, Placement, Shape
from gpq.core.model.units import JobId, NodeId, Seconds


@dataclass(frozen=True, slots=True)
class Launch:
    job: JobId
    attempt: int
    spec: JobSpec
    placement: Placement
    order: BatchOrder
    why: str = ""
    port: int = 0  # where its replicas meet, on the first node


@dataclass(frozen=True, slots=True)
class Stop:
    job: JobId
    attempt: int
    nodes: tuple[NodeId, ...]
    reason: StopReason
    mode: str  # "checkpoint" | "signal" | "kill", as in wire
    grace: Seconds
    why: str = ""
    target: Shape | None = None  # of a resize: what the job shall go on with


@dataclass(frozen=True, slots=True)
class Retune:
    job: JobId
    attempt: int
    node: NodeId  # of rank 0
    order: BatchOrder
    why: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """The outcome of an attempt is committed; the node need not keep its record."""

    job: JobId
    attempt: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Look whether what the job needs is on a node, and run its setup there. Idempotent by (node,
    environment)."""

    node: NodeId
    environment: str
    spec: JobSpec


OfAttempt = Launch | Stop | Retune | Forget
Action = OfAttempt | Prepare
