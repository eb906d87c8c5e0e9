"""Jobs as the allocator may see them: without offers that need a freedom which their loops took
away.

No policy knows of habits. A job that may not be resized asks for the GPUs that it has. A job that
may not accumulate asks for as many as hold its base batch at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.profile import ACCUMULATE, RESIZE, Declared
from gpq.core.model.snapshot import Snapshot


def least_at_once(declared: Declared) -> int:
    """GPUs on which a share of the base batch is no larger than the largest micro-batch, on any
    type. 1 if there is no limit."""
    bounds = [most for _, _, most in declared.atomic_by_type] or [declared.max_atomic_batch]
    return max([1, *(-(-declared.batch_size // most) for most in bounds if most > 0)])


def bind(job: Job, snapshot: Snapshot) -> Job:
    """The job with the range of GPUs that its lost freedoms leave. The same object if they leave it
    unchanged. If no number of GPUs suits the job, its range stays. Each GPU then runs its share at
    once, whatever its size."""
    declared = job.profile.declared
    if not job.profile.habits or declared is None or not job.resumable:
        return job
    lost_freedoms, least, most = job.profile.lost, job.spec.min_gpus, job.spec.max_gpus
    if RESIZE in lost_freedoms:
        least = most = gpus_kept(job)
    elif ACCUMULATE in lost_freedoms:
        least = _least(job, declared, snapshot)
    target = job.target
    if target is not None and not _is_allowed(target, least, lost_freedoms):
        target = None
    if (least, most, target) == (job.spec.min_gpus, job.spec.max_gpus, job.target):
        return job
    return replace(job, spec=replace(job.spec, min_gpus=least, max_gpus=most), target=target)


def _least(job: Job, declared: Declared, snapshot: Snapshot) -> int:
    """The fewest GPUs of a job that may not accumulate: as many as hold its base batch at once, if
    it may have them."""
    needed = least_at_once(declared)
    if job.spec.min_gpus < needed <= _most(job, declared, snapshot):
        return needed
    return job.spec.min_gpus


def _is_allowed(target: Shape, least: int, lost_freedoms: frozenset[str]) -> bool:
    if RESIZE in lost_freedoms:
        return target.replicas == least
    return target.replicas >= least


def gpus_kept(job: Job) -> int:
    """GPUs of a job that may not be resized: as many as it has or had, within its user's present
    request."""
    spec = job.spec
    if job.placement is not None:
        return job.replicas
    return max(min(job.last_replicas, spec.max_gpus or job.last_replicas), spec.min_gpus)


def _most(job: Job, declared: Declared, snapshot: Snapshot) -> int:
    """The GPUs of one type that it may have, whoever holds them."""
    spec = job.spec
    types = Counter(
        device.type
        for node in snapshot.nodes.values()
        for device in node.devices
        if spec.gpu_type.casefold() in device.type.casefold()
        and device.memory_mib >= spec.min_gpu_memory_mib
    )
    most = max(types.values(), default=0)
    largest = declared.largest_batch
    return min(most, spec.max_gpus or most, max(largest // max(declared.min_atomic_batch, 1), 1))


def is_cramped(job: Job) -> bool:
    """Does it hold fewer GPUs than its base batch needs at once, although it may not accumulate?"""
    declared = job.profile.declared
    return (
        job.placement is not None
        and declared is not None
        and ACCUMULATE in job.profile.lost
        and job.replicas < least_at_once(declared)
    )


def is_asked_for(job: Job) -> bool:
    """Does it have as many GPUs as its user now asks for?"""
    return job.spec.min_gpus <= job.replicas <= (job.spec.max_gpus or job.replicas)


def runs_cramped(job: Job) -> bool:
    """Should gpq move the job to more GPUs when they are free?"""
    running = job.state is JobState.RUNNING and job.wish is DesiredState.RUN
    return running and job.elastic and is_cramped(job) and is_asked_for(job)
