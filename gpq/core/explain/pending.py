"""Why a job that waits is not started: the first obstacle, or what there is of GPUs and who has
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpq.core.explain.explanation import Explained
from gpq.core.explain.obstacles import (
    never_elsewhere,
    never_fits,
    never_while_drained,
    never_while_reserved,
    no_environment,
    no_server,
    owned_lines,
    reserved_lines,
    staying_lines,
)
from gpq.core.explain.start_window import window
from gpq.core.feasibility import environments
from gpq.core.feasibility.checkpoints import out_of_reach
from gpq.core.feasibility.device_status import (
    drain_lines,
    gpus,
    out_of_use,
)
from gpq.core.feasibility.gates import closed, gate
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.orphans import at_large, must_wait
from gpq.core.feasibility.reservations import barred
from gpq.core.feasibility.shapes import gpu_range, nodes_up, usable
from gpq.core.freedoms import words
from gpq.core.freedoms.freedoms import bound
from gpq.core.model.jobs import Job, JobState, Level
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId

KEEPS_IDLE = ("fifo", "backfill")  # policies that keep GPUs for a job which needs several


def why_pending(
    snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job
) -> Explained:
    """The first obstacle, else who has the GPUs. `allocation`: of the last round."""
    for check in (_behind_gate, _backing_off, _may_run_elsewhere, _without_checkpoint):
        obstacle = check(snapshot, job)
        if obstacle is not None:
            return obstacle
    strict = words.of_size(snapshot, job)
    job = bound(job, snapshot)
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
    if obstacle is not None and strict:
        reasons = (*obstacle.reasons, *strict)
        return replace(obstacle, reasons=reasons, remedies=tuple(words.remedies(job)))
    return obstacle or _waits_for_gpus(snapshot, allocation, job, fewest, strict)


def _behind_gate(snapshot: Snapshot, job: Job) -> Explained | None:
    shut = gate(snapshot, job)
    return None if shut is None else Explained(shut.headline, shut.reasons, shut.remedies)


def _backing_off(snapshot: Snapshot, job: Job) -> Explained | None:
    wait = job.not_before - snapshot.now
    if wait <= 0:
        return None
    if job.lost_attempts[1] > job.attempt and job.exit is None:
        restored = (
            "the database was restored from a copy: servers first tell whether it runs there since"
        )
        return Explained(f"starts in {wait:.0f} s", (restored,))
    note = "its last attempt failed"
    if job.exit is not None and (job.exit.lost or job.exit.fenced):
        note = "its last attempt was lost with its server"
    if job.exit is not None and job.exit.note:
        note = job.exit.note
    reason = f"{note}; gpq waits {wait:.0f} s before the next attempt"
    return Explained(f"tries again in {wait:.0f} s", (reason,))


def _may_run_elsewhere(snapshot: Snapshot, job: Job) -> Explained | None:
    """An attempt that a restored database does not know may still run."""
    place = at_large(snapshot, job)
    if place is None:
        return None
    node, orphan = place
    why = must_wait(snapshot, job)
    restored = (
        "the database was restored from a copy made before that; a second one beside it might harm"
        " its files"
    )
    end = f"`kill {orphan.pid}` on {node} ends it; " if orphan.pid else ""
    remedy = f"{end}when it has ended the job starts; its log: {orphan.folder}"
    return Explained(why, (why, restored), (remedy,))


def _without_checkpoint(snapshot: Snapshot, job: Job) -> Explained | None:
    away = out_of_reach(snapshot, job)
    if not away:
        return None
    reason = f"{away}; it is not started from the beginning"
    remedy = f"it goes on when the server is back; `gpq cancel {job.id}` gives it up"
    return Explained(f"waits for its checkpoint: {away}", (reason,), (remedy,))


def _waits_for_gpus(
    snapshot: Snapshot,
    allocation: Mapping[JobId, Shape] | None,
    job: Job,
    fewest: int,
    strict: Sequence[str],
) -> Explained:
    """It fits what there is, once enough of that is free. `strict`: why it may have no other number
    of GPUs."""
    free = _free(snapshot, job)
    reasons = [
        _too_few(snapshot, job, fewest, free),
        *strict,
        *drain_lines(snapshot),
        *out_of_use(snapshot, job.spec),
        *reserved_lines(snapshot, job),
        *owned_lines(snapshot, job),
        *staying_lines(snapshot, job),
        *(f"not used for it: {line}" for line in environments.obstacles(snapshot, job)),
    ]
    holders = _holders(snapshot, job)
    if holders:
        shown = ", ".join(_holder(snapshot.jobs[owner]) for owner in holders[:6])
        reasons.append(f"GPUs are held by {shown}{' and others' if len(holders) > 6 else ''}")
    if allocation is not None and job.id in allocation:
        given = gpus(allocation[job.id].replicas)
        reasons.append(f"the last round gave it {given}; it starts when they are free")
        return Explained("GPUs are being freed", tuple(reasons))
    ahead = _ahead(snapshot, job)
    needs = {name: snapshot.jobs[name].spec.min_gpus for name in ahead}
    until = window(snapshot, job, fewest, needs)
    if until is not None:
        reasons.append(str(until))
    if fewest > 1 and not job.spec.background and snapshot.config.policy not in KEEPS_IDLE:
        reasons.append("jobs that need fewer GPUs may start before it: gpq keeps none idle for it")
    remedies = _fixed_holders(snapshot, holders)
    if strict:
        remedies += words.remedies(job)
    elif not ahead:
        remedies += _would_fit_now(job, fewest, free)
    headline = "waits for GPUs"
    if job.spec.background:
        headline = "waits for GPUs that nobody else wants"
        reasons.append("it was submitted for the background: whoever else waits goes first")
        remedies.append(f"`gpq edit {job.id} --no-background` makes it a job as any other")
    return Explained(headline, tuple(reasons), tuple(remedies))


def _free(snapshot: Snapshot, job: Job) -> dict[NodeId, int]:
    """Server -> its devices that the job could have now."""
    kept = {*held_by(snapshot), *barred(snapshot, job)}
    return {
        node.id: sum(
            usable(device, job.spec) and (node.id, device.id) not in kept for device in node.devices
        )
        for node in nodes_up(snapshot)
    }


def _too_few(snapshot: Snapshot, job: Job, fewest: int, free: Mapping[NodeId, int]) -> str:
    count = sum(free.values())
    together = f"{count} of {_total(snapshot)} are free"
    scattered = max(free.values(), default=0) < fewest <= count
    if not scattered or job.spec.level is Level.SCRIPT:
        return f"it needs {gpus(fewest)}; {together}"
    where = ", ".join(f"{number} on {name}" for name, number in sorted(free.items()) if number)
    return f"it needs {gpus(fewest)} on one server; {together}: {where}"


def _holders(snapshot: Snapshot, job: Job) -> list[JobId]:
    """Who has devices that would suit it."""
    suited = {
        (node.id, device.id)
        for node in nodes_up(snapshot)
        for device in node.devices
        if usable(device, job.spec)
    }
    owners = {owner for place, owner in held_by(snapshot).items() if place in suited}
    return sorted(owners - {job.id})


def _ahead(snapshot: Snapshot, job: Job) -> list[JobId]:
    """Jobs that wait as well, and are in front of it."""
    gated = closed(snapshot)
    return [
        other.id
        for other in snapshot.jobs.values()
        if other.state is JobState.PENDING
        and other.id != job.id
        and other.id not in gated
        and _before(other, job)
    ]


def _fixed_holders(snapshot: Snapshot, holders: Sequence[JobId]) -> list[str]:
    jobs = [snapshot.jobs[name] for name in holders]
    fixed = [job.id for job in jobs if not (job.movable or job.spec.background)]
    if not fixed:
        return []
    end = "ends" if len(fixed) == 1 else "end"
    return [f"it may start when {_list(fixed)} {end}: gpq may not move what runs there"]


def _would_fit_now(job: Job, fewest: int, free: Mapping[NodeId, int]) -> list[str]:
    together = sum(free.values())
    most = together if job.spec.level is Level.SCRIPT else max(free.values(), default=0)
    count = min(most, fewest - 1)
    if not count:
        return []
    command = f"`gpq edit {job.id} --gpus {count}`"
    return [f"it fits into what is free now if {gpus(count)} will do: {command}"]


def _before(other: Job, job: Job) -> bool:
    return (-other.spec.priority, other.id) < (-job.spec.priority, job.id)


def _total(snapshot: Snapshot) -> int:
    return sum(len(node.devices) for node in snapshot.nodes.values())


def _holder(job: Job) -> str:
    return f"job {job.id} ({job.spec.user}, {gpus(job.replicas)})"


def _list(jobs: list[JobId]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(str(name) for name in jobs[:6])
