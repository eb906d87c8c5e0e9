"""Which jobs a round decides on, and which shapes each could have: equal questions are answered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpq.core.models import HOLDS_DEVICES, Job, JobId, JobState, Level, NodeId, Shape, Snapshot, Wish
from gpq.core.shapes import Supply, feasible, held_by, is_fixed, is_leaving, is_mixed, shape_on, supply

Kind = tuple[str, int]  # what is asked of devices: part of the type's name, least memory


@dataclass(frozen=True, slots=True)
class Offer:
    """Devices that jobs of one kind may be given in this round."""

    devices: Supply
    node_size: int  # of the largest node
    sizes: frozenset[tuple[str, int]]  # (type, devices) of its nodes

    @property
    def nodes(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job to decide on. `current` is the shape it has, or was stopped to go on with."""

    job: Job
    options: tuple[Shape, ...]
    offer: Offer
    current: Shape | None


@dataclass(frozen=True, slots=True)
class Field:
    """`kept` are jobs that keep what they have; `capacities` what is left for the others, by type ("" where all are one)."""

    kept: Mapping[JobId, Shape]
    candidates: tuple[Candidate, ...]
    capacities: Mapping[str, int]


def field_of(snapshot: Snapshot) -> Field:
    """Everything that is to be decided in this round."""
    kept = {
        job.id: shape_on(job.placement, snapshot)
        for job in snapshot.jobs.values()
        if job.placement is not None and (job.wish is not Wish.RUN or is_fixed(job, snapshot))
    }
    taken = {device: job for device, job in held_by(snapshot).items() if job in kept}
    waiting = [snapshot.jobs[name] for name in sorted(snapshot.jobs) if name not in kept and _ready(snapshot, name)]
    # The same for all who ask for the same, since none of them holds what is taken.
    kinds = {_kind(job): job for job in waiting}
    offers = {kind: _offer(snapshot, supply(snapshot, job, taken)) for kind, job in kinds.items()}
    shapes: dict[tuple[object, ...], tuple[Shape, ...]] = {}
    candidates = [_candidate(snapshot, job, offers[_kind(job)], shapes) for job in waiting]
    return Field(kept, tuple(candidates), _capacities(snapshot, offers, waiting))


def _kind(job: Job) -> Kind:
    return job.spec.gpu_type, job.spec.min_gpu_memory_mib


def _ready(snapshot: Snapshot, name: JobId) -> bool:
    job = snapshot.jobs[name]
    if job.state in HOLDS_DEVICES:
        return True
    return job.state is JobState.PENDING and job.wish is Wish.RUN and snapshot.now >= job.not_before


def _offer(snapshot: Snapshot, devices: Supply) -> Offer:
    sizes: set[tuple[str, int]] = set()
    mixed = is_mixed(snapshot)
    for node, ids in devices.items():
        if not mixed:
            sizes.add(("", len(ids)))
            continue
        types = {device.id: device.type for device in snapshot.nodes[node].devices}
        counts: dict[str, int] = {}
        for device in ids:
            counts[types[device]] = counts.get(types[device], 0) + 1
        sizes.update(counts.items())
    return Offer(devices, max((count for _, count in sizes), default=0), frozenset(sizes))


def _candidate(
    snapshot: Snapshot, job: Job, offer: Offer, shapes: dict[tuple[object, ...], tuple[Shape, ...]]
) -> Candidate:
    spec, declared = job.spec, job.profile.declared
    key = (
        id(offer), spec.level, spec.rigid, spec.min_gpus, spec.max_gpus,
        declared and (declared.adaptive, declared.batch_size, declared.max_batch_size, declared.min_atomic_batch),
    )  # fmt: skip
    options = shapes.get(key)
    if options is None:
        options = shapes[key] = feasible(job, snapshot, offer.devices)
    current = job.target
    if job.placement is not None and not is_leaving(job, snapshot):
        current = shape_on(job.placement, snapshot)
        if current not in options:
            options = tuple(sorted((*options, current), key=lambda each: (each.gpu_type, each.replicas, each.nodes)))
            options = shapes.setdefault((options,), options)
    return Candidate(job, options, offer, current)


def _capacities(snapshot: Snapshot, offers: Mapping[Kind, Offer], waiting: list[Job]) -> dict[str, int]:
    devices = {(node, device) for offer in offers.values() for node, ids in offer.devices.items() for device in ids}
    for job in waiting:
        devices |= job.placement.devices if job.placement is not None else frozenset()
    if not is_mixed(snapshot):
        return {"": len(devices)}
    types: dict[tuple[NodeId, str], str] = {
        (node.id, device.id): device.type for node in snapshot.nodes.values() for device in node.devices
    }
    found: dict[str, int] = {}
    for device in devices:
        name = types[device]
        found[name] = found.get(name, 0) + 1
    return {name: found[name] for name in sorted(found)}


def asks_for(job: Job) -> int:
    """GPUs of a job that has no choice; 0 where it has."""
    return job.spec.min_gpus if job.spec.level is not Level.SCRIPT else 0
