"""Sentences for `gpq why` about the freedoms that a job's loop took away. Decides nothing."""

from __future__ import annotations

from gpq.core.freedoms.freedoms import bind, is_asked_for, is_cramped, least_at_once
from gpq.core.freedoms.habits import blame, cures
from gpq.core.model.jobs import Job
from gpq.core.model.profile import ACCUMULATE, RESIZE, RETUNE, SPLIT
from gpq.core.model.snapshot import Snapshot


def of_size(snapshot: Snapshot, job: Job) -> list[str]:
    """Why it has or needs exactly this number of GPUs."""
    declared = job.profile.declared
    if not job.profile.habits or declared is None:
        return []
    if RESIZE in job.profile.lost and job.resumable:
        return [_of_kept_size(snapshot, job)]
    if ACCUMULATE not in job.profile.lost:
        return []
    reason = _of_least_size(snapshot, job, least_at_once(declared))
    return [reason] if reason else []


def _of_least_size(snapshot: Snapshot, job: Job, needed: int) -> str:
    """For a job that may not accumulate."""
    why = blame(job, ACCUMULATE)
    is_narrowed = bind(job, snapshot) is not job
    if is_cramped(job) and not is_narrowed:
        return (
            "no number of GPUs that it may have can hold its base batch at once. Each GPU runs its"
            f" whole share, because {why}"
        )
    if is_cramped(job) and is_asked_for(job):
        return (
            f"it moves to {_gpus(needed)} or more when they are free. Until then each GPU runs its"
            f" whole share at once, because gpq may not split its base batch: {why}"
        )
    if is_narrowed:
        return (
            f"it gets at least {_gpus(needed)}, which hold its base batch at once. gpq may not"
            f" split the batch, because {why}"
        )
    return ""


def _of_kept_size(snapshot: Snapshot, job: Job) -> str:
    """For a job that may not be resized."""
    why = blame(job, RESIZE)
    if job.placement is not None:
        return (
            "gpq neither resizes nor moves it. It would not resume exactly after a restart,"
            f" because {why}"
        )
    count = _gpus(bind(job, snapshot).spec.min_gpus)
    return (
        f"it resumes with {count} or not at all. Another number would change its results, because"
        f" {why}"
    )


def of_batch(job: Job) -> list[str]:
    """Why it has this batch and no other."""
    lost_freedoms = job.profile.lost
    reasons = []
    if RETUNE in lost_freedoms:
        reasons.append(f"gpq keeps its base batch size, because {blame(job, RETUNE)}")
    if ACCUMULATE in lost_freedoms:
        reasons.append(
            f"gpq splits no step into several micro-batches, because {blame(job, ACCUMULATE)}"
        )
    if SPLIT in lost_freedoms:
        reasons.append(
            f"gpq splits no step to measure its noise scale, because {blame(job, SPLIT)}"
        )
    return reasons


def remedies(job: Job) -> list[str]:
    """A line for each habit that can be fixed, and the remedy for a job that waits for its former
    number of GPUs."""
    lines = cures(job, *sorted(job.profile.lost))
    if RESIZE in job.profile.lost and job.resumable and job.placement is None:
        lines.append(
            f"`gpq edit {job.id} --gpus N` lets it resume with another number anyway, but not"
            " exactly"
        )
    return lines


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
