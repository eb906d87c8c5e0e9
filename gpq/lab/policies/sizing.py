"""Jobs of a policy that chooses their sizes: each on one type of GPU, with its minimum and
maximum."""

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
    pack,
    supply,
)
from gpq.core.model.jobs import Job, arrival
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import contest, eligible


@dataclass(frozen=True, slots=True)
class Contender:
    """A job to decide on. Its GPUs are all of `gpu_type` ("" if there is only one). `offer`:
    devices that it could have."""

    job: Job
    gpu_type: str
    offer: Supply
    least: int  # GPUs, at least 1
    most: int
    # may use several nodes: it can be resized, or is a script that fits on no single node
    spreads: bool


@dataclass(frozen=True, slots=True)
class Entrants:
    """Jobs of `fixed_shapes` keep what they have. `contenders` are in the order of `arrival`."""

    fixed_shapes: Mapping[JobId, Shape]
    contenders: tuple[Contender, ...]


def entrants(snapshot: Snapshot) -> Entrants:
    """Jobs also keep devices that they could not get now: a job on a draining node goes on there.
    Jobs that can never have their minimum are left out."""
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
    """Are all its devices in this offer? True if it has none."""
    return all(set(devices) <= set(offer.get(node, ())) for node, devices in job.parts)


def _at_home(jobs: Sequence[Job], parts: Mapping[JobId, Mapping[str, Supply]]) -> list[Contender]:
    """A type for each job. A job that holds GPUs stays on their type. Another one goes where most
    GPUs are left by those jobs, by jobs without a choice, and by jobs before it."""
    choices: dict[JobId, dict[str, Supply]] = {}
    for job in jobs:
        choices[job.id] = {
            name: offer
            for name, offer in parts[job.id].items()
            if pack(job.spec.min_gpus, node_counts(offer), job.spec.level, "") is not None
            and _holds(job, offer)
        }
    claims: Counter[str] = Counter()
    contenders: dict[JobId, Contender] = {}
    for job in sorted(jobs, key=lambda job: (job.placement is None, len(choices[job.id]) > 1)):
        if choices[job.id]:
            counts = {name: node_counts(offer) for name, offer in choices[job.id].items()}
            home = max(counts, key=lambda name: sum(counts[name]) - claims[name])
            least, most = gpu_range(job, sum(counts[home]), home)
            spreads = least < most or least > counts[home][0]
            contenders[job.id] = Contender(
                job, home, choices[job.id][home], max(least, 1), max(most, 1), spreads
            )
            claims[home] += job.replicas or job.spec.min_gpus
    return [contenders[job.id] for job in jobs if job.id in contenders]
