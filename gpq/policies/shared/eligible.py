"""Which jobs a round decides on, which ones keep what they have, and the devices for the others.
Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import (
    Supply,
    by_type,
    feasible,
    gpu_range,
    kind_of,
    shape_on,
    supply,
)
from gpq.core.model.jobs import ANY_NUMBER, HOLDS_DEVICES, DesiredState, Job, arrival
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId

PRIORITY_FACTOR = 4.0  # one step of priority
MOST_STEPS = 10  # more steps of priority make no difference


def eligible(snapshot: Snapshot) -> list[Job]:
    """Jobs that a policy may decide on now, by id: waiting jobs that may start, and running jobs
    that may move."""
    jobs = []
    for _, job in sorted(snapshot.jobs.items()):
        if job.state in HOLDS_DEVICES:
            is_open = job.wish is DesiredState.RUN and not is_fixed(job, snapshot)
        else:
            is_open = may_start(snapshot, job)
        if is_open:
            jobs.append(job)
    return jobs


def waiting(snapshot: Snapshot) -> list[Job]:
    """Those that hold nothing, in the order of `arrival`."""
    return sorted((job for job in eligible(snapshot) if job.placement is None), key=arrival)


def priority_weight(job: Job) -> float:
    """How many times as much it counts as a job of priority 0."""
    return PRIORITY_FACTOR ** min(max(job.spec.priority, -MOST_STEPS), MOST_STEPS)


@dataclass(frozen=True, slots=True)
class Contest:
    """`fixed_shapes`: of jobs that keep what they have. `jobs`: those to decide on, by id, with the
    devices that each could use (`offers`, by type `parts`). `capacity`: the devices for all of
    them, by type."""

    fixed_shapes: Mapping[JobId, Shape]
    jobs: tuple[Job, ...]
    offers: Mapping[JobId, Supply]
    parts: Mapping[JobId, Mapping[str, Supply]]
    capacity: Mapping[str, int]


def contest(snapshot: Snapshot, jobs: Sequence[Job] | None = None) -> Contest:
    """Of `jobs`, by default all eligible ones. All other jobs keep their devices."""
    if jobs is None:
        jobs = eligible(snapshot)
    kinds = {job.id: kind_of(job, snapshot) for job in jobs}
    fixed_shapes: dict[JobId, Shape] = {}
    holders: dict[tuple[NodeId, DeviceId], JobId] = {}
    for job in snapshot.holders:
        if job.placement is not None and job.id not in kinds:
            fixed_shapes[job.id] = shape_on(job.placement, snapshot)
            holders.update(dict.fromkeys(job.placement.devices, job.id))
    # The same for all of one kind, because none of them holds what is taken.
    examples = {kinds[job.id]: job for job in jobs}
    offers = {kind: supply(snapshot, job, holders) for kind, job in examples.items()}
    parts = {kind: by_type(offer, snapshot) for kind, offer in offers.items()}
    return Contest(
        fixed_shapes,
        tuple(jobs),
        {name: offers[kind] for name, kind in kinds.items()},
        {name: parts[kind] for name, kind in kinds.items()},
        _capacity(snapshot, jobs, parts.values()),
    )


def _capacity(
    snapshot: Snapshot, jobs: Iterable[Job], parts: Iterable[Mapping[str, Supply]]
) -> dict[str, int]:
    devices: dict[str, set[tuple[NodeId, DeviceId]]] = {}
    for offers in parts:
        for name, offer in offers.items():
            devices.setdefault(name, set()).update(
                (node, device) for node, ids in offer.items() for device in ids
            )
    for job in jobs:  # it may stay on a device on which nothing new starts
        if job.placement is not None:
            name = shape_on(job.placement, snapshot).gpu_type
            devices.setdefault(name, set()).update(job.placement.devices)
    return {name: len(devices[name]) for name in sorted(devices)}


def configurations(snapshot: Snapshot, round_: Contest) -> dict[JobId, list[Shape]]:
    """Powers of two within a node, whole nodes, and the job's minimum. That is about N + log2 R of
    a type (Sia, SOSP'23, section 3.3)."""
    shapes_by_key: dict[tuple[object, ...], list[Shape]] = {}
    shapes_by_job = {}
    for job in round_.jobs:
        # The same for all jobs with the same devices and range of sizes.
        key = (kind_of(job, snapshot), job.spec.level, gpu_range(job, ANY_NUMBER))
        if key not in shapes_by_key:
            node_sizes = {
                name: {len(ids) for ids in part.values()}
                for name, part in round_.parts[job.id].items()
            }
            shapes_by_key[key] = [
                shape
                for shape in feasible(job, snapshot, round_.offers[job.id])
                if shape.nodes > 1
                or shape.replicas & (shape.replicas - 1) == 0
                or shape.replicas == job.spec.min_gpus
                or shape.replicas in node_sizes[shape.gpu_type]
            ]
        shapes_by_job[job.id] = shapes_by_key[key]
    return shapes_by_job
