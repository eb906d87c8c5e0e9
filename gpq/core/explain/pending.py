"""Why a job waits, what would change it, and when it may start: an interval that is honest rather
than narrow.

The earliest start assumes that everything goes well and no other job comes. The latest assumes that
everything with a limit takes as long as it may. Movable jobs count as able to give up their GPUs in
the next round, and also as keeping them until their own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from gpq.core.feasibility import environments
from gpq.core.feasibility.checkpoints import out_of_reach
from gpq.core.feasibility.device_status import out_of_use
from gpq.core.feasibility.gates import (
    array_limit,
    array_of,
    closed_gates,
    halted_jobs,
    may_be_gated,
)
from gpq.core.feasibility.leases import at_large, must_wait
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.reservations import barred_devices
from gpq.core.feasibility.shapes import gpu_range, nodes_up, usable
from gpq.core.freedoms import bind
from gpq.core.goodput import estimates
from gpq.core.model.jobs import HOLDS_DEVICES, Dependency, Job, JobState, Level, On
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Shape
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
    for check in (behind_gate, _backing_off, _may_run_elsewhere, _without_checkpoint):
        obstacle = check(snapshot, job)
        if obstacle is not None:
            return obstacle
    sizes = lines("fixed-size", freedoms.of_size(snapshot, job))
    job = bind(job, snapshot)
    for check in (never_while_drained, never_while_reserved, never_elsewhere):
        obstacle = check(snapshot, job)
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


def _backing_off(snapshot: Snapshot, job: Job) -> JobReasons | None:
    wait = job.not_before - snapshot.now
    if wait <= 0:
        return None
    if job.lost_attempts[1] > job.attempt and job.exit is None:
        return JobReasons(reason("starts-after-restore", wait=wait), (reason("servers-report"),))
    return JobReasons(reason("retry", wait=wait), (_last_attempt(job, wait),))


def _last_attempt(job: Job, wait: float) -> Reason:
    if job.exit is not None and job.exit.note:
        return reason("attempt-ended", line=job.exit.note, wait=wait)
    if job.exit is not None and (job.exit.lost or job.exit.fenced):
        return reason("attempt-lost", wait=wait)
    return reason("attempt-failed", wait=wait)


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
    free = _free(snapshot, job)
    holders = _holders(snapshot, job)
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
        reasons.append(reason("held-by", jobs=[snapshot.jobs[name] for name in holders]))
    if allocation is not None and job.id in allocation:
        reasons.append(reason("gpus-on-the-way", gpus=allocation[job.id].replicas))
        return JobReasons(reason("gpus-being-freed"), tuple(reasons))
    ahead = _ahead(snapshot, job)
    needs = {name: snapshot.jobs[name].spec.min_gpus for name in ahead}
    start = window(snapshot, job, fewest, needs)
    if start is not None:
        reasons.append(reason("start-window", window=start))
    if fewest > 1 and not job.spec.background and snapshot.config.policy not in KEEPS_IDLE:
        reasons.append(reason("smaller-first"))
    remedies = _fixed_holders(snapshot, holders)
    if sizes:
        remedies += lines("habit-remedy", freedoms.remedies(job))
    elif not ahead:
        remedies += _would_fit_now(job, fewest, free)
    if not job.spec.background:
        return JobReasons(reason("waits-for-gpus"), tuple(reasons), tuple(remedies))
    reasons.append(reason("others-first"))
    remedies.append(reason("edit-no-background", job=job.id))
    return JobReasons(reason("waits-in-background"), tuple(reasons), tuple(remedies))


def _free(snapshot: Snapshot, job: Job) -> dict[NodeId, int]:
    """For each server, the number of devices that the job could have now."""
    closed_devices = {*held_by(snapshot), *barred_devices(snapshot, job)}
    return {
        node.id: sum(
            usable(device, job.spec) and (node.id, device.id) not in closed_devices
            for device in node.devices
        )
        for node in nodes_up(snapshot)
    }


def _too_few(snapshot: Snapshot, job: Job, fewest: int, free: Mapping[NodeId, int]) -> Reason:
    count, total = sum(free.values()), total_gpus(snapshot)
    is_scattered = max(free.values(), default=0) < fewest <= count
    if not is_scattered or job.spec.level is Level.SCRIPT:
        return reason("too-few-free", gpus=fewest, free=count, total=total)
    by_server = [f"{number} on {name}" for name, number in sorted(free.items()) if number]
    return reason("free-scattered", gpus=fewest, free=count, total=total, by_server=by_server)


def _holders(snapshot: Snapshot, job: Job) -> list[JobId]:
    """The jobs that have devices which would suit it."""
    suited = {
        (node.id, device.id)
        for node in nodes_up(snapshot)
        for device in node.devices
        if usable(device, job.spec)
    }
    owners = {owner for place, owner in held_by(snapshot).items() if place in suited}
    return sorted(owners - {job.id})


def _ahead(snapshot: Snapshot, job: Job) -> list[JobId]:
    """Other waiting jobs that come before it."""
    gated = closed_gates(snapshot)
    return [
        rival.id
        for rival in snapshot.jobs.values()
        if rival.state is JobState.PENDING
        and rival.id != job.id
        and rival.id not in gated
        and (-rival.spec.priority, rival.id) < (-job.spec.priority, job.id)
    ]


def _fixed_holders(snapshot: Snapshot, holders: Sequence[JobId]) -> list[Reason]:
    jobs = [snapshot.jobs[name] for name in holders]
    fixed = [job.id for job in jobs if not (job.movable or job.spec.background)]
    return [reason("wait-for-end", jobs=fixed)] if fixed else []


def _would_fit_now(job: Job, fewest: int, free: Mapping[NodeId, int]) -> list[Reason]:
    together = sum(free.values())
    most = together if job.spec.level is Level.SCRIPT else max(free.values(), default=0)
    count = min(most, fewest - 1)
    return [reason("edit-to-fit", job=job.id, gpus=count)] if count else []


def behind_gate(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """The whole answer about the gate that keeps `job` waiting. None if there is no such gate."""
    headline = closed_gates(snapshot).get(job.id) if may_be_gated(job) else None
    if headline is None:
        return None
    reasons = [_prerequisite(snapshot, dependency) for dependency in job.awaits]
    remedies = []
    if job.awaits and job.id in halted_jobs(snapshot):
        remedies.append(reason("requeue-chain"))
    if job.awaits:
        remedies.append(reason("edit-after", job=job.id))
    wait = job.spec.begin - snapshot.now
    if wait > 0:
        reasons.append(reason("begins-later", wait=wait))
        remedies.append(reason("edit-begin", job=job.id))
    if not reasons and job.spec.seat is not None:
        reasons.append(_full_array(snapshot, job))
        remedies.append(reason("edit-array-limit", array=array_of(job), limit=array_limit(job) + 1))
    code = f"gate-{_gate(snapshot, job)}"
    return JobReasons(reason(code, line=headline), tuple(reasons), tuple(remedies))


def _gate(snapshot: Snapshot, job: Job) -> str:
    if job.unmet:
        return "unmet"
    if job.awaits:
        return "after"
    if job.spec.begin > snapshot.now:
        return "begin"
    return "array"


def _prerequisite(snapshot: Snapshot, dependency: Dependency) -> Reason:
    prerequisite = snapshot.jobs.get(dependency.job)
    facts = (
        f" ({prerequisite.name or prerequisite.spec.argv[0]}, {prerequisite.state})"
        if prerequisite is not None
        else ""
    )
    return reason(_CODES[dependency.on], job=dependency.job, facts=facts)


def _full_array(snapshot: Snapshot, job: Job) -> Reason:
    array = array_of(job)
    count = sum(
        sibling.state in HOLDS_DEVICES and array_of(sibling) == array
        for sibling in snapshot.jobs.values()
    )
    return reason("array-full", count=count, array=array, limit=array_limit(job))


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
    opens = earliest < SOON and all(_idle_count(pool, dark) < fewest for pool in pools)
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


def _idle_count(
    pool: Sequence[tuple[Seconds, Seconds, JobId | None]], dark: Sequence[JobId]
) -> int:
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
