"""When a waiting job may start: an interval, and what bounds it. Honest rather than narrow: what
nobody knows stays open.

The beginning supposes that everything goes well and nobody else comes; the end that all that is
bounded takes as long as it may. Jobs that can be moved count as able to give their GPUs in the next
round, and as keeping them until their own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpq.core.feasibility.leases import span
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.reservations import barred
from gpq.core.feasibility.shapes import usable
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.planning import time_left

SOON: Seconds = 2.0  # less is "at once"
FASTER, SLOWER = (
    0.7,
    1.5,
)  # what an end by progress may turn out to be, over what it looks like: speeds change with sizes
NEVER = float("inf")
SHOWN = 3  # jobs that a sentence names


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from now. `latest` infinite: nothing bounds it. `because`: what it hangs on, a
    sentence. `open`: also the beginning hangs on an end of which nothing is known."""

    earliest: Seconds
    latest: Seconds
    because: str
    open: bool = False

    def __str__(self) -> str:
        if self.latest < SOON:
            return "it may start at once"
        begin = (
            f"in {span(self.earliest)} at the earliest"
            if self.earliest >= SOON
            else "as soon as GPUs are given back"
        )
        if self.latest == NEVER:
            when = (
                "nobody knows when it may start"
                if self.open
                else f"it may start {begin}; nobody knows how late"
            )
            return f"{when}: {self.because}"
        return (
            f"it may start {begin}, and within {span(self.latest)} if nobody else comes:"
            f" {self.because}"
        )


def window(snapshot: Snapshot, job: Job, fewest: int, ahead: Mapping[JobId, int]) -> Window | None:
    """When `fewest` GPUs may be there for a job that waits for nothing else; None where they never
    are. `ahead`: GPUs that jobs before it wait for."""
    taken, kept = held_by(snapshot), barred(snapshot, job)
    ends = {name: _end(snapshot, snapshot.jobs[name]) for name in sorted(set(taken.values()))}
    nodes: list[list[tuple[Seconds, Seconds, JobId | None]]] = []
    for _, node in sorted(snapshot.nodes.items()):
        if node.state is not NodeState.UP or node.id in snapshot.drained:
            continue
        mine = [d for d in node.devices if usable(d, job.spec) and (node.id, d.id) not in kept]
        holders = [taken.get((node.id, device.id)) for device in mine]
        nodes.append(
            [(*ends[name], name) if name is not None else (0.0, 0.0, None) for name in holders]
        )
    pools = [[one for each in nodes for one in each]] if job.spec.level is Level.SCRIPT else nodes
    pools = [pool for pool in pools if len(pool) >= fewest]
    if not pools:
        return None
    earliest = min(sorted(first for first, _, _ in pool)[fewest - 1] for pool in pools)
    more = sum(ahead.values())
    last = [
        sorted(pool, key=lambda one: one[1])[min(fewest + more, len(pool)) - 1] for pool in pools
    ]
    latest, holder = min(((late, name) for _, late, name in last), key=lambda pair: pair[0])
    dark = _dark(snapshot, ends)
    opens = earliest < SOON and all(_free(pool, dark) < fewest for pool in pools)
    if fewest + more > max(map(len, pools)):
        return Window(
            earliest, NEVER, f"{_ahead(ahead)}, and they do not all fit beside each other", opens
        )
    return Window(earliest, latest, _because(snapshot, latest, holder, ahead, dark), opens)


def _dark(snapshot: Snapshot, ends: Mapping[JobId, tuple[Seconds, Seconds]]) -> list[JobId]:
    """Those of whose end nothing is known, and that cannot be moved before it."""
    jobs = [snapshot.jobs[name] for name, (_, latest) in ends.items() if latest == NEVER]
    return [
        job.id
        for job in jobs
        if estimates.remaining_seconds(job, snapshot.now) is None and not _gives_way(job)
    ]


def _free(pool: Sequence[tuple[Seconds, Seconds, JobId | None]], dark: Sequence[JobId]) -> int:
    """GPUs of a pool that may be had at once without the end of a job in `dark`."""
    return sum(first < SOON and name not in dark for first, _, name in pool)


def _gives_way(job: Job) -> bool:
    return job.movable or job.spec.background


def _end(snapshot: Snapshot, job: Job) -> tuple[Seconds, Seconds]:
    """(earliest, latest) that its GPUs are free."""
    left = estimates.remaining_seconds(job, snapshot.now)
    latest = min(
        NEVER if left is None else left * SLOWER,
        max(time_left(job, snapshot.now), 0.0) + job.spec.grace,
    )
    if _gives_way(job):
        return 0.0, latest
    return (0.0 if left is None else left * FASTER), latest


def _because(
    snapshot: Snapshot,
    latest: Seconds,
    holder: JobId | None,
    ahead: Mapping[JobId, int],
    dark: Sequence[JobId],
) -> str:
    if holder is None:
        return "the GPUs are free"
    job, before = snapshot.jobs[holder], f"{_ahead(ahead)}; " if ahead else ""
    if latest == NEVER:
        silent = dark if holder in dark else [holder]
        told = (
            "has told neither its length" if len(silent) == 1 else "have told neither their length"
        )
        return f"{before}{_jobs(silent)} {told} nor a time limit (--time)"
    left = estimates.remaining_seconds(job, snapshot.now)
    if left is not None and left * SLOWER <= latest:
        return f"{before}job {holder} seems to need another {span(left)}"
    return f"{before}the time limit of job {holder} ends it by then"


def _ahead(ahead: Mapping[JobId, int]) -> str:
    return f"{_jobs(sorted(ahead))} {'comes' if len(ahead) == 1 else 'come'} before it"


def _jobs(names: Sequence[JobId]) -> str:
    """`job 3`; `jobs 3, 4 and 5`; `jobs 3, 4, 5 and 9 others`."""
    if len(names) == 1:
        return f"job {names[0]}"
    shown, rest = (names[:SHOWN], len(names) - SHOWN) if len(names) > SHOWN + 1 else (names[:-1], 0)
    return f"jobs {', '.join(map(str, shown))} and {f'{rest} others' if rest else names[-1]}"
