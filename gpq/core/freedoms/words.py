"""What is said to a job's user of freedoms that its loop took from gpq: sentences for `gpq why`.
Decides nothing."""

from __future__ import annotations

from gpq.core.freedoms.freedoms import bound, is_asked_for, is_cramped, least_at_once
from gpq.core.freedoms.habits import blamed, cures
from gpq.core.model.jobs import Job
from gpq.core.model.profile import ACCUMULATE, RESIZE, RETUNE, SPLIT
from gpq.core.model.snapshot import Snapshot


def of_size(snapshot: Snapshot, job: Job) -> list[str]:
    """Why it has, or needs, just so many GPUs."""
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
    """Of a job that may not accumulate."""
    why = blamed(job, ACCUMULATE)
    is_narrowed = bound(job, snapshot) is not job
    if is_cramped(job) and not is_narrowed:
        return (
            "no number of GPUs that it may have holds its base batch at once: each runs its whole"
            f" share, since {why}"
        )
    if is_cramped(job) and is_asked_for(job):
        return (
            f"it moves to {_gpus(needed)} or more once they are free, and until then each runs its"
            f" whole share at once: its base batch is not run in parts, since {why}"
        )
    if is_narrowed:
        return (
            f"it gets {_gpus(needed)} at least, which hold its base batch at once: it is not run in"
            f" parts, since {why}"
        )
    return ""


def _of_kept_size(snapshot: Snapshot, job: Job) -> str:
    """Of a job that may not be resized."""
    why = blamed(job, RESIZE)
    if job.placement is not None:
        return (
            "gpq neither resizes nor moves it: it would not go on exactly after a restart,"
            f" since {why}"
        )
    count = _gpus(bound(job, snapshot).spec.min_gpus)
    return (
        f"it goes on with {count} or not at all: with another number it would differ, since {why}"
    )


def of_batch(job: Job) -> list[str]:
    """Why it has this batch, and no other."""
    lost_freedoms = job.profile.lost
    reasons = []
    if RETUNE in lost_freedoms:
        reasons.append(f"its total batch stays as it was declared, since {blamed(job, RETUNE)}")
    if ACCUMULATE in lost_freedoms:
        reasons.append(
            f"no step is cut into several micro-batches, since {blamed(job, ACCUMULATE)}"
        )
    if SPLIT in lost_freedoms:
        reasons.append(f"no step is split to measure its noise scale, since {blamed(job, SPLIT)}")
    return reasons


def remedies(job: Job) -> list[str]:
    """A line for each habit that can be mended; and what a job that waits for the GPUs that it had
    can be told."""
    lines = cures(job, *sorted(job.profile.lost))
    if RESIZE in job.profile.lost and job.resumable and job.placement is None:
        lines.append(
            f"`gpq edit {job.id} --gpus N` lets it go on with another number all the same, though"
            " not exactly"
        )
    return lines


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
