"""Background jobs run only on GPUs that nobody else wants. gpq first decides on the others as if
there were no background jobs, then on these with what is left."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.model.jobs import Allotment, DesiredState, Job, JobState
from gpq.core.model.placements import Placement
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement.placement import place


def decided(
    snapshot: Snapshot, policy: Policy
) -> tuple[dict[JobId, Allotment], dict[JobId, Placement]]:
    """What `policy` gives to whom, and where."""
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
    placements = _undisturbing(snapshot, allotments)
    leftover = _left(snapshot, background_jobs, placements)
    background_allotments = policy.allocate(leftover)
    return {**allotments, **background_allotments}, {
        **placements,
        **place(leftover, background_allotments),
    }


def _undisturbing(
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


def _left(
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
        name: _of_rest(job, busy_devices)
        for name, job in background_jobs.items()
        if job.wish is DesiredState.RUN
    }
    return replace(snapshot, nodes=nodes, jobs=jobs)


def _of_rest(job: Job, busy_devices: Set[tuple[NodeId, DeviceId]]) -> Job:
    spec = replace(job.spec, background=False)
    if job.placement is None or not job.placement.devices & busy_devices:
        return replace(job, spec=spec)
    return replace(
        job, spec=spec, state=JobState.PENDING, placement=None, launched_at=None, started_at=None
    )
