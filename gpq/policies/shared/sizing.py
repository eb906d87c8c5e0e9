"""Jobs of a policy that sizes them itself: each on one type of GPUs, with the fewest and the most
that it may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpq.core.feasibility.shapes import (
    Supply,
    by_type,
    gpu_range,
    kind_of,
    node_counts,
    packed,
    supply,
)
from gpq.core.model.jobs import Job, arrival
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import contest, eligible


@dataclass(frozen=True, slots=True)
class Contender:
    """A job to decide on. Its GPUs are all of `gpu_type` ("" where there is one only); `offer`:
    those it could have."""

    job: Job
    gpu_type: str
    offer: Supply
    least: int  # GPUs, at least 1
    most: int
    # may have GPUs of several nodes: who can be resized, and scripts that fit on no single one
    spreads: bool


@dataclass(frozen=True, slots=True)
class Entrants:
    """Jobs of `fixed_shapes` have what they have; `contenders` in the order of `arrival`."""

    fixed_shapes: Mapping[JobId, Shape]
    contenders: tuple[Contender, ...]


def entrants(snapshot: Snapshot) -> Entrants:
    """Kept are also jobs that hold a device which they could not be given anew (what runs on a
    draining node runs on). Jobs that could never have their least are left out."""
    jobs = eligible(snapshot)
    kinds = {kind_of(job, snapshot): job for job in jobs}
    offers_by_kind = {
        kind: by_type(supply(snapshot, job, {}), snapshot) for kind, job in kinds.items()
    }
    movable_jobs = [
        job
        for job in jobs
        if any(_holds(job, offer) for offer in offers_by_kind[kind_of(job, snapshot)].values())
    ]
    round_ = contest(snapshot, movable_jobs)
    return Entrants(
        round_.fixed_shapes, tuple(_at_home(sorted(movable_jobs, key=arrival), round_.parts))
    )


def _holds(job: Job, offer: Supply) -> bool:
    """Are all devices that it has of this offer? So they are where it has none."""
    parts = job.placement.parts if job.placement is not None else ()
    return all(set(devices) <= set(offer.get(node, ())) for node, devices in parts)


def _at_home(jobs: Sequence[Job], parts: Mapping[JobId, Mapping[str, Supply]]) -> list[Contender]:
    """Each on its type: a job that holds GPUs stays on theirs, another goes where most are left by
    those, by the jobs that have no choice, and by those before it."""
    choices = {job.id: _possible_types(job, parts[job.id]) for job in jobs}
    claims: Counter[str] = Counter()
    contenders: dict[JobId, Contender] = {}
    for job in sorted(jobs, key=lambda job: (job.placement is None, len(choices[job.id]) > 1)):
        if choices[job.id]:
            contender = contenders[job.id] = _contender(job, choices[job.id], claims)
            claims[contender.gpu_type] += job.replicas or job.spec.min_gpus
    return [contenders[job.id] for job in jobs if job.id in contenders]


def _possible_types(job: Job, offers: Mapping[str, Supply]) -> dict[str, Supply]:
    return {
        name: offer
        for name, offer in offers.items()
        if _can_have(job, offer) and _holds(job, offer)
    }


def _contender(job: Job, types: Mapping[str, Supply], claims: Mapping[str, int]) -> Contender:
    """On the type that has most GPUs beyond those claimed."""
    counts = {name: node_counts(offer) for name, offer in types.items()}
    home = max(types, key=lambda name: sum(counts[name]) - claims.get(name, 0))
    least, most = gpu_range(job, sum(counts[home]), home)
    spreads = least < most or least > counts[home][0]
    return Contender(job, home, types[home], max(least, 1), max(most, 1), spreads)


def _can_have(job: Job, offer: Supply) -> bool:
    return packed(job.spec.min_gpus, node_counts(offer), job.spec.level, "") is not None
