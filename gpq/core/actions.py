"""Orders, imperative. Each is idempotent by (job, attempt): performing one twice is performing it once."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.models import BatchOrder, JobSpec, Placement, Shape, StopReason
from gpq.core.units import JobId, NodeId, Seconds

# Master ports lie below Linux's ephemeral range (32768-60999), so no outgoing connection takes them by chance.
FIRST_PORT, LAST_PORT = 20_000, 32_700


@dataclass(frozen=True, slots=True)
class Launch:
    job: JobId
    attempt: int
    spec: JobSpec
    placement: Placement
    order: BatchOrder
    why: str = ""
    salt: int = 0  # of this daemon: two daemons on one machine have jobs of the same numbers

    @property
    def port(self) -> int:
        """A port of this attempt alone: neighbours in time get other ones, so none is reused at once."""
        return FIRST_PORT + (self.salt + self.job * 61 + self.attempt * 7) % (LAST_PORT - FIRST_PORT)


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
    """Look whether what the job needs is on a node, and run its setup there. Idempotent by (node, environment)."""

    node: NodeId
    environment: str
    spec: JobSpec


OfAttempt = Launch | Stop | Retune | Forget
Action = OfAttempt | Prepare
