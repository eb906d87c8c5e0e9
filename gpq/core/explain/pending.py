"""Why a job waits, what would change it, and when it may start: an interval that is honest rather
than narrow.

The earliest start assumes that everything goes well and no other job comes. The latest assumes that
everything with a limit takes as long as it may. Movable jobs count as able to give up their GPUs in
the next round, and also as keeping them until their own end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpq.core import freedoms
from gpq.core.explain.obstacles import (
    JobReasons,
    Reason,
    drains,
    lines,
    never_elsewhere,
    never_fits,
    never_while_drained,
    never_while_reserved,
    no_environment,
    no_server,
    others_servers,
    reason,
    reservations,
    tied_checkpoint,
    total_gpus,
)
from gpq.core.explain.standings import beyond_floor, of_waiting
from gpq.core.feasibility import environments
from gpq.core.feasibility.checkpoints import out_of_reach
from gpq.core.feasibility.device_status import out_of_use
from gpq.core.feasibility.gates import array_of, closed_gates, halted_jobs
from gpq.core.feasibility.leases import at_large, must_wait
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.reservations import barred_devices
from gpq.core.feasibility.shapes import gpu_range, nodes_up, usable
from gpq.core.freedoms import bind
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Dependency, Job, JobState, Level, On
from gpq.core.model.placements import Exit, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.rounds.planning import time_left

_CODES = {
    On.OK: "waits-for-success",
    On.NOTOK: "waits-for-failure",
    On.ANY: "waits-for-end",
}
KEEPS_IDLE = ("fifo", "backfill")  # policies that keep GPUs idle for a job that needs several
SOON: Seconds = 2.0  # less than this is "at once"
# How far an estimated end may be off, as a factor: throughput changes with the number of GPUs.
FASTER, SLOWER = 0.7, 1.5
NEVER = float("inf")


def why_pending(
    snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job
) -> JobReasons:
    """The first obstacle, otherwise who has the GPUs. `allocation` is that of the last round."""
    obstacle = _first_obstacle(
        snapshot, job, behind_gate, _backing_off, _may_run_elsewhere, _without_checkpoint
    )
    if obstacle is not None:
        return obstacle
    sizes = lines("fixed-size", freedoms.of_size(snapshot, job))
    job = bind(job, snapshot)
    obstacle = _first_obstacle(
        snapshot, job, never_while_drained, never_while_reserved, never_elsewhere
    )
    if obstacle is not None:
        return obstacle
    up = nodes_up(snapshot)
    if not up:
        return no_server(snapshot)
    obstacle = no_environment(snapshot, job)
    if obstacle is not None:
        return obstacle
    fewest, _ = gpu_range(job, max(len(node.devices) for node in up))
    obstacle = never_fits(snapshot, job, fewest)
    if obstacle is not None and sizes:
        remedies = tuple(lines("habit-remedy", freedoms.remedies(job)))
        return replace(obstacle, reasons=(*obstacle.reasons, *sizes), remedies=remedies)
    return obstacle or _waits_for_gpus(snapshot, allocation, job, fewest, sizes)


def _first_obstacle(
    snapshot: Snapshot, job: Job, *checks: Callable[[Snapshot, Job], JobReasons | None]
) -> JobReasons | None:
    return next(filter(None, (check(snapshot, job) for check in checks)), None)


def _backing_off(snapshot: Snapshot, job: Job) -> JobReasons | None:
    wait, end = job.not_before - snapshot.now, job.exit or Exit(None)
    if wait <= 0:
        return None
    if job.exit is None and job.lost_attempts[1] > job.attempt:
        return JobReasons(reason("starts-after-restore", wait=wait), (reason("servers-report"),))
    last_attempt = reason("attempt-failed", wait=wait)
    if end.note:
        last_attempt = reason("attempt-ended", line=end.note, wait=wait)
    elif end.lost or end.fenced:
        last_attempt = reason("attempt-lost", wait=wait)
    return JobReasons(reason("retry", wait=wait), (last_attempt,))


def _may_run_elsewhere(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """An attempt that a restored database does not know may still run."""
    place = at_large(snapshot, job)
    if place is None:
        return None
    node, orphan = place
    headline = reason("orphan", line=must_wait(snapshot, job))
    remedy = reason("orphan-log", folder=orphan.folder)
    if orphan.pid:
        remedy = reason("kill-orphan", pid=orphan.pid, server=node, folder=orphan.folder)
    return JobReasons(headline, (headline, reason("orphan-harm")), (remedy,))


def _without_checkpoint(snapshot: Snapshot, job: Job) -> JobReasons | None:
    line = out_of_reach(snapshot, job)
    if not line:
        return None
    return JobReasons(
        reason("waits-for-checkpoint", line=line),
        (reason("checkpoint-away", line=line),),
        (reason("give-up-checkpoint", job=job.id),),
    )


def _waits_for_gpus(
    snapshot: Snapshot,
    allocation: Mapping[JobId, Shape] | None,
    job: Job,
    fewest: int,
    sizes: Sequence[Reason],
) -> JobReasons:
    """It fits what there is once enough of that is free. `sizes` says why it may have no other
    number of GPUs."""
    suited = {
        (node.id, device.id)
        for node in nodes_up(snapshot)
        for device in node.devices
        if usable(device, job.spec)
    }
    owners = held_by(snapshot)
    free = Counter(node for node, _ in suited - owners.keys() - barred_devices(snapshot, job))
    holder_names = sorted({owners[device] for device in suited & owners.keys()} - {job.id})
    holders = [snapshot.jobs[name] for name in holder_names]
    reasons = [
        _too_few(snapshot, job, fewest, free),
        *sizes,
        *drains(snapshot),
        *lines("gpu-out-of-use", out_of_use(snapshot, job.spec)),
        *reservations(snapshot, job),
        *others_servers(snapshot, job),
        *tied_checkpoint(snapshot, job),
        *lines("server-unfit", environments.obstacles(snapshot, job)),
    ]
    if holders:
        reasons.append(reason("held-by", jobs=holders))
    if allocation is not None and job.id in allocation:
        reasons.append(reason("gpus-on-the-way", gpus=allocation[job.id].replicas))
        return JobReasons(reason("gpus-being-freed"), tuple(reasons))
    if (obstacle := beyond_floor(snapshot, job)) is not None:
        return replace(obstacle, reasons=(*reasons, *obstacle.reasons))
    reasons += of_waiting(snapshot, job)
    ahead = _ahead(snapshot, job)
    start = window(snapshot, job, fewest, ahead)
    if start is not None:
        reasons.append(reason("start-window", window=start))
    if fewest > 1 and not job.spec.background and snapshot.config.policy not in KEEPS_IDLE:
        reasons.append(reason("smaller-first"))
    fixed = [holder.id for holder in holders if not _gives_way(holder)]
    remedies = [reason("wait-for-end", jobs=fixed)] if fixed else []
    most = free.total() if job.spec.level is Level.SCRIPT else max(free.values(), default=0)
    if sizes:
        remedies += lines("habit-remedy", freedoms.remedies(job))
    elif not ahead and min(most, fewest - 1):
        remedies.append(reason("edit-to-fit", job=job.id, gpus=min(most, fewest - 1)))
    if not job.spec.background:
        return JobReasons(reason("waits-for-gpus"), tuple(reasons), tuple(remedies))
    reasons.append(reason("others-first"))
    remedies.append(reason("edit-no-background", job=job.id))
    return JobReasons(reason("waits-in-background"), tuple(reasons), tuple(remedies))


def _too_few(snapshot: Snapshot, job: Job, fewest: int, free: Counter[NodeId]) -> Reason:
    count, total = free.total(), total_gpus(snapshot)
    is_scattered = max(free.values(), default=0) < fewest <= count
    if not is_scattered or job.spec.level is Level.SCRIPT:
        return reason("too-few-free", gpus=fewest, free=count, total=total)
    by_server = [f"{number} on {name}" for name, number in sorted(free.items())]
    return reason("free-scattered", gpus=fewest, free=count, total=total, by_server=by_server)


def _ahead(snapshot: Snapshot, job: Job) -> dict[JobId, int]:
    """Other waiting jobs that come before it, and their fewest GPUs."""
    gated = closed_gates(snapshot)
    return {
        rival.id: rival.spec.min_gpus
        for rival in snapshot.jobs.values()
        if rival.state is JobState.PENDING
        and rival.id not in gated
        and (-rival.spec.priority, rival.id) < (-job.spec.priority, job.id)
    }


def behind_gate(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """The whole answer about the gate that keeps `job` waiting. None if there is no such gate."""
    headline = closed_gates(snapshot).get(job.id)
    if headline is None:
        return None
    reasons = [_prerequisite(snapshot, dependency) for dependency in job.awaits]
    remedies, wait, seat = [], job.spec.begin - snapshot.now, job.spec.seat
    if job.awaits:
        if job.id in halted_jobs(snapshot):
            remedies.append(reason("requeue-chain"))
        remedies.append(reason("edit-after", job=job.id))
    if wait > 0:
        reasons.append(reason("begins-later", wait=wait))
        remedies.append(reason("edit-begin", job=job.id))
    if not reasons and seat is not None:
        array, limit = seat.array, seat.limit
        count = sum(array_of(holder) == array for holder in snapshot.holders)
        reasons.append(reason("array-full", count=count, array=array, limit=limit))
        remedies.append(reason("edit-array-limit", array=array, limit=limit + 1))
    gates = (("unmet", job.unmet != ""), ("after", job.awaits != ()), ("begin", wait > 0))
    gate = next((name for name, is_closed in gates if is_closed), "array")
    return JobReasons(reason(f"gate-{gate}", line=headline), tuple(reasons), tuple(remedies))


def _prerequisite(snapshot: Snapshot, dependency: Dependency) -> Reason:
    prerequisite = snapshot.jobs.get(dependency.job)
    facts = (
        f" ({prerequisite.name or prerequisite.spec.argv[0]}, {prerequisite.state})"
        if prerequisite is not None
        else ""
    )
    return reason(_CODES[dependency.on], job=dependency.job, facts=facts)


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
    ends: dict[JobId | None, tuple[Seconds, Seconds]] = {None: (0.0, 0.0)}
    dark = []  # jobs whose end is unknown and that gpq cannot move before it
    for name in sorted(set(owners.values())):
        ends[name] = _end(snapshot, snapshot.jobs[name])
        if ends[name][1] == NEVER and not _gives_way(snapshot.jobs[name]):
            dark.append(name)
    nodes: list[list[tuple[Seconds, Seconds, JobId | None]]] = []
    for node in nodes_up(snapshot):
        pool = []
        for device in node.devices:
            if usable(device, job.spec) and (node.id, device.id) not in closed:
                owner = owners.get((node.id, device.id))
                pool.append((*ends[owner], owner))
        nodes.append(pool)
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
    _, latest, holder = min(last, key=lambda device: device[1])
    opens = earliest < SOON and all(
        sum(first < SOON and name not in dark for first, _, name in pool) < fewest for pool in pools
    )
    if fewest + more > max(map(len, pools)):
        return Window(earliest, NEVER, (reason("ahead-too-large", jobs=sorted(ahead)),), opens)
    if holder is None:
        return Window(earliest, latest, (reason("gpus-free"),), opens)
    because = [reason("jobs-ahead", jobs=sorted(ahead))] if ahead else []
    because.append(_end_reason(snapshot, latest, holder, dark))
    return Window(earliest, latest, tuple(because), opens)


def _gives_way(job: Job) -> bool:
    return job.movable or job.spec.background


def _end(snapshot: Snapshot, job: Job) -> tuple[Seconds, Seconds]:
    """(earliest, latest) time at which its GPUs are free."""
    remaining = estimates.remaining_seconds(job, snapshot.now)
    limit = max(time_left(job, snapshot.now), 0.0) + job.spec.grace
    if remaining is None:
        return 0.0, limit
    return 0.0 if _gives_way(job) else remaining * FASTER, min(remaining * SLOWER, limit)


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
