"""Whether gpq may or must move a job that holds devices, and which devices are held."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.feasibility.owners import is_over_its_grace
from gpq.core.feasibility.reservations import reserved_under
from gpq.core.freedoms import is_asked_for
from gpq.core.model.jobs import HOLDS_DEVICES, DesiredState, Job, JobState, StopReason
from gpq.core.model.nodes import Node, NodeState
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds

UNKNOWN = Node(NodeId(""))  # a server that is no longer configured is as silent as this one
FIRST_TIMES = 4.0  # settle times within which a job should report its first step times


def is_leaving(job: Job, snapshot: Snapshot) -> bool:
    """Was it told to stop in order to resume elsewhere? Then it counts as stopped, and its devices
    as free. Otherwise, when two jobs swap places, the first to stop would get its old devices back.
    A job that does not stop within its grace does not count as stopped."""
    return (
        job.state is JobState.STOPPING
        and job.stop in (StopReason.RESIZE, StopReason.PREEMPT)
        and job.wish is DesiredState.RUN
        and job.stop_sent_at is not None
        and snapshot.now - job.stop_sent_at < job.spec.grace
    )


def settled_at(job: Job, config: Config) -> Seconds:
    """When gpq may move a running job again: after it has run for a while and, if it is elastic,
    reported how fast it is here. Without these times the last restart taught nothing. gpq does not
    wait long for a job that reports none."""
    unknown = job.elastic and job.profile.samples_per_second <= 0
    return (job.started_at or 0.0) + config.settle_seconds * (FIRST_TIMES if unknown else 1.0)


def is_fixed(job: Job, snapshot: Snapshot) -> bool:
    """Must a job that holds devices keep exactly these in this round?"""
    if job.state not in HOLDS_DEVICES:
        return False
    if not is_leaving(job, snapshot) and _stays(job, snapshot):
        return True
    # Silence is not death: what runs on a server that does not answer stays where it is.
    return any(
        snapshot.nodes.get(name, UNKNOWN).state is NodeState.UNREACHABLE for name, _ in job.parts
    )


def _stays(job: Job, snapshot: Snapshot) -> bool:
    """May gpq not stop the job now, or has it not run long enough?"""
    if job.state is not JobState.RUNNING or job.started_at is None:
        return True
    if job.spec.background:
        return False
    if not job.movable and not any(
        is_over_its_grace(job, reservation, snapshot)
        for reservation in reserved_under(job, snapshot)
    ):
        return True
    return snapshot.now < settled_at(job, snapshot.config) and not must_leave(job, snapshot)


def drained_under(job: Job, snapshot: Snapshot) -> list[NodeId]:
    """The drained servers that the job is on."""
    return [name for name, _ in job.parts if name in snapshot.drained]


def must_leave(job: Job, snapshot: Snapshot) -> bool:
    """Is it on a drained server, or on devices that are reserved for others?"""
    return bool(drained_under(job, snapshot) or reserved_under(job, snapshot))


def evacuate(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a policy sees it. Some jobs must leave a drained server or reserved devices,
    or have a number of GPUs that they may no longer have. They count as stopped and their devices
    as free, so staying is no option for the policy. The same object if there is no such job."""
    leaving = {
        job.id: as_waiting(job)
        for job in snapshot.holders
        if job.wish is DesiredState.RUN
        and ((job.elastic and not is_asked_for(job)) or must_leave(job, snapshot))
        and not is_fixed(job, snapshot)
    }
    return replace(snapshot, jobs={**snapshot.jobs, **leaving}) if leaving else snapshot


def as_waiting(job: Job) -> Job:
    """The job as a policy sees it if it has to leave its devices."""
    return replace(job, state=JobState.PENDING, placement=None, launched_at=None, started_at=None)


def held_by(
    snapshot: Snapshot, *, only_fixed: bool = False
) -> dict[tuple[NodeId, DeviceId], JobId]:
    """Which job holds which device."""
    return {
        device: job.id
        for job in snapshot.jobs.values()
        if job.placement is not None and (not only_fixed or is_fixed(job, snapshot))
        for device in job.placement.devices
    }
