"""What members of a simulated team may report or ask untruly. A lie changes what policies see of a
job, and so its GPUs and its batch size. It never changes the job's physics.

A lie about step times or noise replaces what the job measures, so gpq also orders its batch by it.
The job caps that batch at what was measured on its GPUs, as it does with any other order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpq.core.model.jobs import Job
from gpq.core.model.profile import Noise, Profile
from gpq.core.model.units import Seconds
from gpq.lab.measurements.sources import SPLIT

SCALE = 1e9  # examples: a noise scale far above any batch size
NEARLY_DONE = 0.99  # of the length
HIGHEST = 10  # priority
AGE: Seconds = 30 * 86_400.0


def speed(profile: Profile) -> Profile:
    """A step takes one forward and backward pass, on any GPUs and servers: nothing for
    synchronisation."""
    rows = tuple(replace(row, step_time=row.grad_time) for row in profile.rows)
    return replace(profile, rows=rows)


def superlinear(profile: Profile) -> Profile:
    """Twice the replicas do the same work in a quarter of the time."""
    rows = []
    for row in profile.rows:
        seconds = row.grad_time / row.replicas
        rows.append(replace(row, grad_time=seconds, step_time=seconds))
    return replace(profile, rows=tuple(rows))


def noise(profile: Profile) -> Profile:
    """An example of the largest batch teaches as much as one of the smallest."""
    curve = tuple(replace(point, scale=SCALE) for point in profile.noise_curve)
    huge = Noise(1.0, SCALE, 1) if profile.noise is not None else None
    return replace(profile, noise=huge, early_noise=huge, noise_curve=curve)


def length(job: Job, now: Seconds) -> Job:
    """Nearly done."""
    progress = job.profile.progress
    assert progress is not None
    progress = replace(progress, fraction=max(progress.fraction, NEARLY_DONE))
    return replace(job, profile=replace(job.profile, progress=progress))


def priority(job: Job, now: Seconds) -> Job:
    """More urgent than anything else."""
    return replace(job, spec=job.spec.having(priority=HIGHEST))


def age(job: Job, now: Seconds) -> Job:
    """Submitted long ago, and without service up to now."""
    service = job.service - job.service_at(now)
    return replace(job, submitted_at=job.submitted_at - AGE, service=service)


MEASURED: dict[str, Callable[[Profile], Profile]] = {
    "speed": speed,
    "superlinear": superlinear,
    "noise": noise,
}
LENGTH = "length"
CLAIMED: dict[str, Callable[[Job, Seconds], Job]] = {
    LENGTH: length,
    "priority": priority,
    "age": age,
}
KINDS = (*MEASURED, *CLAIMED, SPLIT)


def measurements(profile: Profile, kinds: Iterable[str]) -> Profile:
    """What a job with these lies reports instead of `profile`, which it measured."""
    for kind in kinds:
        if kind in MEASURED:
            profile = MEASURED[kind](profile)
    return profile


def claims(job: Job, now: Seconds, kinds: Iterable[str]) -> Job:
    """The job as its member describes it at `now`."""
    for kind in kinds:
        if kind in CLAIMED:
            job = CLAIMED[kind](job, now)
    return job
