"""The snapshot as a policy may see it if habits of loops took freedoms. It has `freedoms.bound` for
all jobs, and says what happens to jobs that now hold too few GPUs for their base batch. Decides
nothing else."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.feasibility.mobility import held_by, is_fixed, must_leave
from gpq.core.feasibility.shapes import by_type, supply
from gpq.core.freedoms.freedoms import bound, runs_cramped
from gpq.core.model.jobs import Job, JobState, arrival
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


def offered(snapshot: Snapshot, *, moving: bool = True) -> tuple[Snapshot, JobId | None]:
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
        limited_job = bound(job, snapshot)
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
