"""Who competes for GPUs in a round of a policy that sizes jobs itself, on which type of GPUs, and what may not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpq.core.models import HOLDS_DEVICES, Job, JobId, JobState, Level, Shape, Snapshot, Wish
from gpq.core.shapes import Supply, by_type, gpu_range, is_fixed, shape_on, supply


@dataclass(frozen=True, slots=True)
class Contender:
    """A job to decide on. Its GPUs are all of `gpu_type` ("" where there is one only); `offer`: those it could have."""

    job: Job
    gpu_type: str
    offer: Supply
    least: int  # GPUs, at least 1
    most: int
    spreads: bool  # may have GPUs of several nodes: who can be resized, and scripts that fit on no single one

    @property
    def gang(self) -> bool:
        return self.least == self.most


@dataclass(frozen=True, slots=True)
class Field:
    """`kept` jobs have what they have; `contenders` in the order of submission, urgent ones first."""

    kept: Mapping[JobId, Shape]
    contenders: tuple[Contender, ...]


def field_of(snapshot: Snapshot) -> Field:
    """Kept are jobs that are fixed, that are to stop, or that hold a device which they could not be given anew (what runs
    on a draining node runs on). Jobs that could never have their least are left out."""
    kept: dict[JobId, Shape] = {}
    waiting: list[Job] = []
    for name in sorted(snapshot.jobs):
        job = snapshot.jobs[name]
        if job.placement is not None and job.state in HOLDS_DEVICES:
            if job.wish is not Wish.RUN or is_fixed(job, snapshot) or not _would_get_again(job, snapshot):
                kept[name] = shape_on(job.placement, snapshot)
            else:
                waiting.append(job)
        elif job.state is JobState.PENDING and job.wish is Wish.RUN and snapshot.now >= job.not_before:
            waiting.append(job)
    waiting.sort(key=lambda job: (-job.spec.priority, job.submitted_at, job.id))
    taken = {
        device: name
        for name in kept
        if (placement := snapshot.jobs[name].placement) is not None
        for device in placement.devices
    }
    kinds = {(job.spec.gpu_type, job.spec.min_gpu_memory_mib): job for job in waiting}
    offers = {kind: by_type(supply(snapshot, job, taken), snapshot) for kind, job in kinds.items()}
    return Field(kept, tuple(_contenders(waiting, offers)))


def _would_get_again(job: Job, snapshot: Snapshot) -> bool:
    return any(_holds(job, offer) for offer in by_type(supply(snapshot, job, {}), snapshot).values())


def _holds(job: Job, offer: Supply) -> bool:
    """Are all devices that it has of this offer?"""
    parts = job.placement.parts if job.placement is not None else ()
    return all(set(devices) <= set(offer.get(node, ())) for node, devices in parts)


def _contenders(jobs: Sequence[Job], offers: Mapping[tuple[str, int], Mapping[str, Supply]]) -> list[Contender]:
    """Each on its type: a job that holds GPUs stays on theirs, another goes where most are left by those, by the jobs
    that have no choice, and by those before it."""
    able = {}
    for job in jobs:
        types = offers[job.spec.gpu_type, job.spec.min_gpu_memory_mib]
        able[job.id] = {name: offer for name, offer in types.items() if _can_have(job, offer) and _holds(job, offer)}
    taken: dict[str, int] = {}
    found: dict[JobId, Contender] = {}
    for job in sorted(jobs, key=lambda job: (job.placement is None, len(able[job.id]) > 1)):
        types = able[job.id]
        if types:
            home = max(types, key=lambda name: _total(types[name]) - taken.get(name, 0))
            taken[home] = taken.get(home, 0) + (job.replicas or job.spec.min_gpus)
            least, most = gpu_range(job, _total(types[home]))
            widest = max(len(devices) for devices in types[home].values())
            spreads = least < most or least > widest
            found[job.id] = Contender(job, home, types[home], max(least, 1), max(most, 1), spreads)
    return [found[job.id] for job in jobs if job.id in found]


def _total(offer: Supply) -> int:
    return sum(len(devices) for devices in offer.values())


def _can_have(job: Job, offer: Supply) -> bool:
    """Its least: a script from several nodes if need be, anything else from one."""
    if job.spec.level is Level.SCRIPT:
        return _total(offer) >= job.spec.min_gpus
    return max((len(devices) for devices in offer.values()), default=0) >= job.spec.min_gpus
