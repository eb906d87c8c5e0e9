"""The port on which the replicas of an attempt meet: leased at the launch, on the server of rank 0.
Binds nothing itself."""

from __future__ import annotations

import hashlib

from gpq.core.model.jobs import HOLDS_DEVICES
from gpq.core.model.placements import Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId

FIRST, LAST = 20_000, 65_536
# defaults of torchrun and databases
WELL_KNOWN = frozenset({25_000, 27_017, 29_400, 29_500, 29_501, 29_502, 62_078})
ENOUGH = 1_000  # ports, so that a returned one is not leased again at once


def leased_ports(snapshot: Snapshot) -> set[tuple[NodeId, int]]:
    """(server, port) of all attempts that are not over."""
    return {
        (job.placement.parts[0][0], job.port)
        for job in snapshot.jobs.values()
        if job.state in HOLDS_DEVICES and job.placement is not None and job.port
    }


def lease(
    snapshot: Snapshot,
    job: JobId,
    attempt: int,
    placement: Placement,
    leases: set[tuple[NodeId, int]],
) -> int:
    """A port for this attempt, entered in `leases`. Only who knows the salt can foresee it, so
    nobody else can take it first."""
    node = placement.parts[0][0]
    server = snapshot.nodes.get(node)
    span = usable(*server.ephemeral) if server is not None else usable()
    words = f"{snapshot.config.port_salt}:{job}:{attempt}"
    begin = int.from_bytes(hashlib.sha256(words.encode()).digest(), "big")
    for offset in range(len(span)):
        port = span[(begin + offset) % len(span)]
        if port not in WELL_KNOWN and (node, port) not in leases:
            break
    leases.add((node, port))
    return port


def usable(first: int = 32_768, last: int = 60_999) -> range:
    """Ports that the kernel does not give to outgoing connections, which use `first` to `last`. If
    too few are left, those of Linux's default. The server must then find out which is free."""
    for span in (
        range(FIRST, max(first, FIRST)),
        range(max(last + 1, FIRST), LAST),
        range(10_000, max(first, 10_000)),
    ):
        if len(span) >= ENOUGH:
            return span
    return range(FIRST, 32_768)
