"""Orders, in the imperative. Each is idempotent by (job, attempt): performing it twice has the same
effect as once."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.accounts import Promise
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
    port: int = 0  # where its replicas meet, on the first server
    promise: Promise | None = None  # of a resize whose goodput is known
    fresh: bool = False  # with an empty checkpoint folder, although there were attempts before


@dataclass(frozen=True, slots=True)
class Stop:
    job: JobId
    attempt: int
    nodes: tuple[NodeId, ...]
    reason: StopReason
    mode: str  # "checkpoint" | "signal" | "kill", as in wire
    grace: Seconds
    why: str = ""
    target: Shape | None = None  # for a resize: the shape with which the job will resume


@dataclass(frozen=True, slots=True)
class Retune:
    job: JobId
    attempt: int
    node: NodeId  # of rank 0
    order: BatchOrder
    why: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """The outcome of an attempt is committed, so the server need not keep its record."""

    job: JobId
    attempt: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Warm:
    """Keep an interpreter ready on the server of `launch`, where the job may run next."""

    job: JobId
    attempt: int
    launch: Launch


@dataclass(frozen=True, slots=True)
class Prepare:
    """Check whether a server has what the job needs, and run its setup there. Idempotent by
    (server, environment)."""

    node: NodeId
    environment: str
    spec: JobSpec


OfAttempt = Launch | Stop | Retune | Forget | Warm
Action = OfAttempt | Prepare
