"""GPUs that a job holds but does not use, according to the driver. gpq reports them after a while.
After twice that time, a resizable job keeps only the fewest GPUs that it asked for, until it uses
one again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpq.core.feasibility.leases import span
from gpq.core.model.events import Idled
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds

Since = Mapping[tuple[NodeId, DeviceId], Seconds]
USED = 1  # per cent of the time from which a GPU counts as used. Less is rounding
RECLAIM = 2.0  # times `Config.idle_after`


def fold(since: Since, node: Node, now: Seconds) -> Since:
    """Since when each device has been unused, after a report of `node`. Nothing is known about a
    server that does not answer. The same mapping if nothing changes. Devices without a utilisation
    (CPU slots, MIG) count as used."""
    idle = {
        (node.id, device.id): since.get((node.id, device.id), now)
        for device in node.devices
        if device.utilisation is not None and device.utilisation < USED
    }
    after = {**{key: at for key, at in since.items() if key[0] != node.id}, **idle}
    return since if after == since else after


def unused_devices(snapshot: Snapshot, job: Job) -> list[tuple[NodeId, DeviceId, Seconds]]:
    """(node, device, seconds) of devices that a running job has not used for long, or since it
    started there."""
    limit = snapshot.config.idle_after
    if not snapshot.idle or not limit or job.state is not JobState.RUNNING:
        return []
    idle_devices = []
    for node, devices in job.parts:
        for device in devices:
            at = snapshot.idle.get((node, device))
            if at is not None:
                seconds = snapshot.now - max(at, job.started_at or at)
                if seconds >= limit:
                    idle_devices.append((node, device, seconds))
    return idle_devices


def line(snapshot: Snapshot, job: Job) -> str:
    """``has not used GPU 0, 1 of ada for 40 m``, or "" if it uses all of them or gpq does not
    know."""
    idle_devices = unused_devices(snapshot, job)
    if not idle_devices:
        return ""
    indices = {
        (node.id, device.id): str(device.index)
        for node in snapshot.nodes.values()
        for device in node.devices
    }
    nodes: dict[NodeId, list[str]] = {}
    for node, device, _ in idle_devices:
        nodes.setdefault(node, []).append(indices.get((node, device), str(device)))
    where = ", ".join(f"GPU {', '.join(numbers)} of {node}" for node, numbers in nodes.items())
    return f"has not used {where} for {span(min(seconds for *_, seconds in idle_devices))}"


def reclaim(snapshot: Snapshot) -> list[Idled]:
    """What follows for jobs that could have been resized for that long."""
    if not snapshot.idle:
        return []
    limit = RECLAIM * snapshot.config.idle_after
    return [
        Idled(snapshot.now, job.id, f"it {line(snapshot, job)}")
        for job in snapshot.holders
        if job.elastic
        and not job.idle
        and any(seconds >= limit for *_, seconds in unused_devices(snapshot, job))
    ]


def busy_again(jobs: Mapping[JobId, Job], node: Node) -> dict[JobId, Job]:
    """Jobs that were found idle but use a device of `node` after all."""
    busy_devices = {
        (node.id, device.id)
        for device in node.devices
        if device.utilisation is not None and device.utilisation >= USED
    }
    return {
        name: replace(job, idle=False)
        for name, job in jobs.items()
        if job.idle and job.placement is not None and job.placement.devices & busy_devices
    }


def cap_idle(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a policy sees it: a job that was found idle asks for its fewest GPUs. The
    same object if there is none."""
    idle = {
        name: replace(job, spec=job.spec.having(max_gpus=job.spec.min_gpus))
        for name, job in snapshot.jobs.items()
        if job.idle and job.elastic
    }
    return replace(snapshot, jobs={**snapshot.jobs, **idle}) if idle else snapshot
