"""When a waiting job may start: an interval, and what bounds it. Honest rather than narrow: what nobody knows stays open.

The beginning supposes that everything goes well and nobody else comes; the end that all that is bounded takes as long as it
may. Jobs that can be moved count as able to give their GPUs in the next round, and as keeping them until their own end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpq.core import estimates
from gpq.core.leases import span
from gpq.core.models import Job, Level, Snapshot
from gpq.core.nodes import NodeState
from gpq.core.planning import time_left
from gpq.core.reservations import barred
from gpq.core.shapes import held_by, usable
from gpq.core.units import JobId, Seconds

SOON: Seconds = 2.0  # less is "at once"
FASTER, SLOWER = (
    0.7,
    1.5,
)  # what an end by progress may turn out to be, over what it looks like: speeds change with sizes
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from now. `latest` infinite: nothing bounds it. `because`: what it hangs on, a sentence."""

    earliest: Seconds
    latest: Seconds
    because: str

    def __str__(self) -> str:
        if self.latest < SOON:
            return "it may start at once"
        begin = f"in {span(self.earliest)} at the earliest" if self.earliest >= SOON else "at any moment"
        if self.latest == NEVER:
            return f"it may start {begin}; nobody knows how late: {self.because}"
        return f"it may start {begin}, and within {span(self.latest)} if nobody else comes: {self.because}"


def window(snapshot: Snapshot, job: Job, fewest: int, ahead: Mapping[JobId, int]) -> Window | None:
    """When `fewest` GPUs may be there for a job that waits for nothing else; None where they never are. `ahead`: GPUs that
    jobs before it wait for."""
    taken, kept = held_by(snapshot), barred(snapshot, job)
    ends = {name: _end(snapshot, snapshot.jobs[name]) for name in sorted(set(taken.values()))}
    nodes: list[list[tuple[Seconds, Seconds, JobId | None]]] = []
    for _, node in sorted(snapshot.nodes.items()):
        if node.state is not NodeState.UP or node.id in snapshot.drained:
            continue
        mine = [d for d in node.devices if usable(d, job.spec) and (node.id, d.id) not in kept]
        holders = [taken.get((node.id, device.id)) for device in mine]
        nodes.append([(*ends[name], name) if name is not None else (0.0, 0.0, None) for name in holders])
    pools = [[one for each in nodes for one in each]] if job.spec.level is Level.SCRIPT else nodes
    pools = [pool for pool in pools if len(pool) >= fewest]
    if not pools:
        return None
    earliest = min(sorted(first for first, _, _ in pool)[fewest - 1] for pool in pools)
    more = sum(ahead.values())
    last = [sorted(pool, key=lambda one: one[1])[min(fewest + more, len(pool)) - 1] for pool in pools]
    latest, holder = min(((late, name) for _, late, name in last), key=lambda pair: pair[0])
    if fewest + more > max(map(len, pools)):
        return Window(earliest, NEVER, f"{_jobs(len(ahead))} ahead of it, and not all fit beside each other")
    return Window(earliest, latest, _because(snapshot, latest, holder, len(ahead)))


def _end(snapshot: Snapshot, job: Job) -> tuple[Seconds, Seconds]:
    """(earliest, latest) that its GPUs are free."""
    left = estimates.remaining_seconds(job, snapshot.now)
    latest = min(NEVER if left is None else left * SLOWER, max(time_left(job, snapshot.now), 0.0) + job.spec.grace)
    if job.movable or job.spec.background:
        return 0.0, latest
    return (0.0 if left is None else left * FASTER), latest


def _because(snapshot: Snapshot, latest: Seconds, holder: JobId | None, ahead: int) -> str:
    if holder is None:
        return "the GPUs are free"
    job, before = snapshot.jobs[holder], f"{_jobs(ahead)} ahead of it; " if ahead else ""
    if latest == NEVER:
        return f"{before}job {holder} has neither told its length nor a time limit"
    left = estimates.remaining_seconds(job, snapshot.now)
    if left is not None and left * SLOWER <= latest:
        return f"{before}job {holder} seems to need another {span(left)}"
    return f"{before}the time limit of job {holder} ends it by then"


def _jobs(count: int) -> str:
    return f"{count} job is" if count == 1 else f"{count} jobs are"
