"""When a waiting job may start: an interval, and what limits it. It is honest rather than narrow:
what nobody knows stays open.

The earliest time assumes that everything goes well and no other job comes. The latest time assumes
that everything with a limit takes as long as it may. Movable jobs count as able to give up their
GPUs in the next round, and also as keeping them until their own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gpq.core.explain.reasons import Reason, reason
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.reservations import barred_devices
from gpq.core.feasibility.shapes import usable
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.planning import time_left

SOON: Seconds = 2.0  # less than this is "at once"
# How far an estimated end may be off, as a factor: throughput changes with the number of GPUs.
FASTER, SLOWER = 0.7, 1.5
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from now. An infinite `latest` has no limit. `because` says what it depends on.
    `open`: the earliest time also depends on an unknown end."""

    earliest: Seconds
    latest: Seconds
    because: tuple[Reason, ...]
    open: bool = False


def window(snapshot: Snapshot, job: Job, fewest: int, ahead: Mapping[JobId, int]) -> Window | None:
    """When `fewest` GPUs may be free for a job that waits for nothing else. None if they never are.
    `ahead` has the GPUs that earlier jobs wait for."""
    owners, closed = held_by(snapshot), barred_devices(snapshot, job)
    ends = {name: _end(snapshot, snapshot.jobs[name]) for name in sorted(set(owners.values()))}
    nodes: list[list[tuple[Seconds, Seconds, JobId | None]]] = []
    for _, node in sorted(snapshot.nodes.items()):
        if node.state is not NodeState.UP or node.id in snapshot.drained:
            continue
        mine = [d for d in node.devices if usable(d, job.spec) and (node.id, d.id) not in closed]
        holders = [owners.get((node.id, device.id)) for device in mine]
        nodes.append(
            [(*ends[name], name) if name is not None else (0.0, 0.0, None) for name in holders]
        )
    pools = [list(chain(*nodes))] if job.spec.level is Level.SCRIPT else nodes
    pools = [pool for pool in pools if len(pool) >= fewest]
    if not pools:
        return None
    earliest = min(sorted(first for first, _, _ in pool)[fewest - 1] for pool in pools)
    more = sum(ahead.values())
    last = [
        sorted(pool, key=lambda device: device[1])[min(fewest + more, len(pool)) - 1]
        for pool in pools
    ]
    latest, holder = min(((late, name) for _, late, name in last), key=lambda pair: pair[0])
    dark = _dark(snapshot, ends)
    opens = earliest < SOON and all(_free(pool, dark) < fewest for pool in pools)
    if fewest + more > max(map(len, pools)):
        return Window(earliest, NEVER, (reason("ahead-too-large", jobs=sorted(ahead)),), opens)
    return Window(earliest, latest, _because(snapshot, latest, holder, ahead, dark), opens)


def _dark(snapshot: Snapshot, ends: Mapping[JobId, tuple[Seconds, Seconds]]) -> list[JobId]:
    """The jobs whose end is unknown and that gpq cannot move before it."""
    jobs = [snapshot.jobs[name] for name, (_, latest) in ends.items() if latest == NEVER]
    return [
        job.id
        for job in jobs
        if estimates.remaining_seconds(job, snapshot.now) is None and not _gives_way(job)
    ]


def _free(pool: Sequence[tuple[Seconds, Seconds, JobId | None]], dark: Sequence[JobId]) -> int:
    """GPUs of a pool that are available at once without the end of a job in `dark`."""
    return sum(first < SOON and name not in dark for first, _, name in pool)


def _gives_way(job: Job) -> bool:
    return job.movable or job.spec.background


def _end(snapshot: Snapshot, job: Job) -> tuple[Seconds, Seconds]:
    """(earliest, latest) time at which its GPUs are free."""
    remaining = estimates.remaining_seconds(job, snapshot.now)
    latest = min(
        NEVER if remaining is None else remaining * SLOWER,
        max(time_left(job, snapshot.now), 0.0) + job.spec.grace,
    )
    if _gives_way(job):
        return 0.0, latest
    return (0.0 if remaining is None else remaining * FASTER), latest


def _because(
    snapshot: Snapshot,
    latest: Seconds,
    holder: JobId | None,
    ahead: Mapping[JobId, int],
    dark: Sequence[JobId],
) -> tuple[Reason, ...]:
    if holder is None:
        return (reason("gpus-free"),)
    bound = _end_reason(snapshot, latest, holder, dark)
    return (reason("jobs-ahead", jobs=sorted(ahead)), bound) if ahead else (bound,)


def _end_reason(
    snapshot: Snapshot, latest: Seconds, holder: JobId, dark: Sequence[JobId]
) -> Reason:
    """What the end of `holder` depends on."""
    if latest == NEVER:
        return reason("end-unknown", jobs=dark if holder in dark else [holder])
    remaining = estimates.remaining_seconds(snapshot.jobs[holder], snapshot.now)
    if remaining is not None and remaining * SLOWER <= latest:
        return reason("end-by-progress", job=holder, seconds=remaining)
    return reason("end-by-limit", job=holder)
