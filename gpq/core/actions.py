"""Orders, imperative. Each is idempotent by (job, attempt): performing one twice is performing it once."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from gpq.core.models import BatchOrder, JobId, JobSpec, NodeId, Placement, Seconds, Shape, StopReason

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

    @property
    def port(self) -> int:
        """A port of this attempt alone: neighbours in time get other ones, so none is reused at once. Other daemons on
        the same server count their jobs from 1 as well, so whose job it is and what it runs shift it."""
        shift = crc32(repr((self.spec.uid, self.spec.cwd, self.spec.argv, self.spec.env)).encode())
        return FIRST_PORT + (shift + self.job * 61 + self.attempt * 7) % (LAST_PORT - FIRST_PORT)


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


Action = Launch | Stop | Retune | Forget
