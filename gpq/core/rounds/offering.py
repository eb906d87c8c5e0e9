"""What a round offers to the policy, and asks of it.

If habits of loops took freedoms, the policy sees `freedoms.bind` for all jobs, and jobs that now
hold too few GPUs for their base batch may move. Background jobs get what the policy gives to nobody
else.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from gpq.core.feasibility.gates import without_gated
from gpq.core.feasibility.idle_gpus import cap_idle
from gpq.core.feasibility.mobility import evacuate, held_by, is_fixed, must_leave
from gpq.core.feasibility.shapes import by_type, supply
from gpq.core.freedoms.freedoms import bind, runs_cramped
from gpq.core.model.jobs import Allotment, DesiredState, Job, JobState, arrival
from gpq.core.model.placements import Placement
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement.placement import place


def make_offer(snapshot: Snapshot, *, moving: bool = True) -> tuple[Snapshot, JobId | None]:
    """The snapshot in which no job is offered what it may not have. Also the one job, if any, that
    counts as stopped because it runs cramped and enough GPUs are free for it. Other cramped jobs
    stay where they are. Without `moving` all of them stay, for a caller that finds that the job to
    move gets nothing.

    The same object if no job has a habit.
    """
    changes, cramped_jobs = _limits(snapshot)
    roomy_jobs = (job for job in cramped_jobs if moving and _has_room(job, snapshot))
    mover = next(roomy_jobs, None)
    if mover is not None:
        changes[mover.id] = replace(
            mover,
            state=JobState.PENDING,
            placement=None,
            launched_at=None,
            started_at=None,
            target=None,
        )
    offer = replace(snapshot, jobs={**snapshot.jobs, **changes}) if changes else snapshot
    return offer, mover.id if mover is not None else None


def _limits(snapshot: Snapshot) -> tuple[dict[JobId, Job], list[Job]]:
    """Jobs as lost freedoms limit them, if that changes them, and the jobs that run cramped, in the
    order of their arrival."""
    changes: dict[JobId, Job] = {}
    cramped_jobs: list[Job] = []
    for name, job in snapshot.jobs.items():
        if not job.profile.habits:
            continue
        limited_job = bind(job, snapshot)
        if runs_cramped(job) and not is_fixed(job, snapshot) and not must_leave(job, snapshot):
            cramped_jobs.append(limited_job)
            limited_job = replace(limited_job, spec=replace(limited_job.spec, rigid=True))
        if limited_job is not job:
            changes[name] = limited_job
    return changes, sorted(cramped_jobs, key=arrival)


def _has_room(job: Job, snapshot: Snapshot) -> bool:
    """Are there enough GPUs that nobody else holds?"""
    other_holders = {device: name for device, name in held_by(snapshot).items() if name != job.id}
    parts = by_type(supply(snapshot, job, other_holders), snapshot).values()
    return (
        job.replicas
        < job.spec.min_gpus
        <= max((sum(map(len, part.values())) for part in parts), default=0)
    )


def allocate_for(
    snapshot: Snapshot, policy: Policy
) -> tuple[dict[JobId, Allotment], dict[JobId, Placement]]:
    """What `policy` gives to whom, and where. It may move a job that runs cramped, but not stop it
    for nothing."""
    offer, mover = make_offer(without_gated(snapshot))
    allotments, placements = _allocate(evacuate(cap_idle(offer)), policy)
    if mover is None or mover in placements:
        return allotments, placements
    offer, _ = make_offer(without_gated(snapshot), moving=False)
    return _allocate(evacuate(cap_idle(offer)), policy)


def _allocate(
    snapshot: Snapshot, policy: Policy
) -> tuple[dict[JobId, Allotment], dict[JobId, Placement]]:
    """What `policy` gives to whom, and where. Background jobs get only GPUs that nobody else wants:
    gpq first decides on the others as if there were none, then on these with what is left."""
    background_jobs = {
        name: job
        for name, job in snapshot.jobs.items()
        if job.spec.background and not is_fixed(job, snapshot)
    }
    if not background_jobs:
        allotments = dict(policy.allocate(snapshot))
        return allotments, place(snapshot, allotments)
    foreground = replace(
        snapshot,
        jobs={name: job for name, job in snapshot.jobs.items() if name not in background_jobs},
    )
    allotments = dict(policy.allocate(foreground))
    placements = _quiet_placements(snapshot, allotments)
    leftover = _leftover(snapshot, background_jobs, placements)
    background_allotments = policy.allocate(leftover)
    return {**allotments, **background_allotments}, {
        **placements,
        **place(leftover, background_allotments),
    }


def _quiet_placements(
    snapshot: Snapshot, allotments: Mapping[JobId, Allotment]
) -> dict[JobId, Placement]:
    """If there is a choice, other jobs start on devices that no background job has to leave,
    because they would have to wait for that. A policy's own choice of servers ignores this, so it
    stays only if there is no other place."""
    shapes = {
        name: shape_of(wish) if snapshot.jobs[name].placement is None else wish
        for name, wish in allotments.items()
    }
    placed = place(snapshot, shapes)
    return placed if placed.keys() >= allotments.keys() else place(snapshot, allotments)


def _leftover(
    snapshot: Snapshot, background_jobs: Mapping[JobId, Job], placements: Mapping[JobId, Placement]
) -> Snapshot:
    """Background jobs alone, on the devices that are left. A background job that keeps its devices
    counts as an ordinary job there, so they do not push each other around. All of them leave when
    told to, so they may also use owners' servers."""
    busy_devices = {device for placement in placements.values() for device in placement.devices}
    nodes = {
        name: replace(
            node,
            owner="",
            devices=tuple(
                device for device in node.devices if (name, device.id) not in busy_devices
            ),
        )
        for name, node in snapshot.nodes.items()
    }
    jobs = {
        name: _background_job(job, busy_devices)
        for name, job in background_jobs.items()
        if job.wish is DesiredState.RUN
    }
    return replace(snapshot, nodes=nodes, jobs=jobs)


def _background_job(job: Job, busy_devices: Set[tuple[NodeId, DeviceId]]) -> Job:
    spec = replace(job.spec, background=False)
    if job.placement is None or not job.placement.devices & busy_devices:
        return replace(job, spec=spec)
    return replace(
        job, spec=spec, state=JobState.PENDING, placement=None, launched_at=None, started_at=None
    )
