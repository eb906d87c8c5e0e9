"""Which jobs a round decides on, and which shapes each could have: equal questions are answered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.files import out_of_reach
from gpq.core.models import HOLDS_DEVICES, Job, JobState, Level, Shape, Snapshot, Wish
from gpq.core.shapes import (
    DeviceKind,
    Supply,
    feasible,
    held_by,
    is_fixed,
    is_leaving,
    is_mixed,
    kind_of,
    shape_on,
    supply,
)
from gpq.core.units import JobId, NodeId


@dataclass(frozen=True, slots=True)
class Offer:
    """Devices that jobs of one kind may be given in this round."""

    devices: Supply
    node_size: int  # devices free on the node that has most of them
    sizes: frozenset[tuple[str, int]]  # (type, devices) of its nodes when nobody is on them

    @property
    def nodes(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Shapes that jobs may choose from, with what is asked of them often. One object for equal questions in a round."""

    shapes: tuple[Shape, ...]
    offer: Offer
    index: Mapping[Shape, int]
    replicas: NDArray[np.int64]
    tidy: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job to decide on. `current` is the shape it has, or was stopped to go on with."""

    job: Job
    options: Options
    current: Shape | None


@dataclass(frozen=True, slots=True)
class Field:
    """`kept` are jobs that keep what they have; `free` what is left for the others: devices of each node, by type ("" where
    all are one), and `capacities` their sums."""

    kept: Mapping[JobId, Shape]
    candidates: tuple[Candidate, ...]
    free: Mapping[str, tuple[int, ...]]

    @property
    def capacities(self) -> dict[str, int]:
        return {name: sum(counts) for name, counts in self.free.items()}


def field_of(snapshot: Snapshot, reach: Mapping[JobId, int] | None = None) -> Field:
    """Everything that is to be decided in this round. `reach`: no shape with more replicas than this is looked at, but the
    one that the job has; default: all shapes are."""
    kept = {
        job.id: shape_on(job.placement, snapshot)
        for job in snapshot.jobs.values()
        if job.placement is not None and (job.wish is not Wish.RUN or is_fixed(job, snapshot))
    }
    taken = {device: job for device, job in held_by(snapshot).items() if job in kept}
    waiting = [snapshot.jobs[name] for name in sorted(snapshot.jobs) if name not in kept and _ready(snapshot, name)]
    # The same for all who ask for the same, since none of them holds what is taken.
    kinds = {kind_of(job, snapshot): job for job in waiting}
    offers = {kind: _offer(snapshot, supply(snapshot, job, taken)) for kind, job in kinds.items()}
    menu = _Menu(snapshot)
    candidates = [
        menu.candidate(job, offers[kind_of(job, snapshot)], reach.get(job.id) if reach is not None else None)
        for job in waiting
    ]
    return Field(kept, tuple(candidates), _free(snapshot, offers, waiting))


def _ready(snapshot: Snapshot, name: JobId) -> bool:
    job = snapshot.jobs[name]
    if job.state in HOLDS_DEVICES:
        return True
    if job.state is not JobState.PENDING or job.wish is not Wish.RUN or snapshot.now < job.not_before:
        return False
    return not out_of_reach(snapshot, job)


def _offer(snapshot: Snapshot, devices: Supply) -> Offer:
    mixed = is_mixed(snapshot)
    sizes: set[tuple[str, int]] = set()
    for node in devices:
        counts: dict[str, int] = {}
        for device in snapshot.nodes[node].devices:
            name = device.type if mixed else ""
            counts[name] = counts.get(name, 0) + 1
        sizes.update(counts.items())
    free = [len(ids) for ids in devices.values()]
    return Offer(devices, max(free, default=0), frozenset(sizes))


class _Menu:
    """Options by what they depend on."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._all: dict[tuple[object, ...], tuple[Shape, ...]] = {}
        self._options: dict[tuple[object, ...], Options] = {}

    def candidate(self, job: Job, offer: Offer, reach: int | None) -> Candidate:
        spec, declared = job.spec, job.profile.declared
        key = (
            id(offer), spec.level, spec.rigid, spec.min_gpus, spec.max_gpus,
            declared and (declared.adaptive, declared.batch_size, declared.max_batch_size, declared.min_atomic_batch),
        )  # fmt: skip
        bounded = (*key, reach)
        options = self._options.get(bounded)
        if options is None:
            shapes = self._all.get(key)
            if shapes is None:
                shapes = self._all[key] = feasible(job, self.snapshot, offer.devices)
            if reach is not None:
                shapes = tuple(shape for shape in shapes if shape.replicas <= reach)
            options = self._options[bounded] = _options(shapes, offer)
        if job.placement is None or is_leaving(job, self.snapshot):
            return Candidate(job, options, job.target)
        current = shape_on(job.placement, self.snapshot)
        if current not in options.index:
            wider = (*key, reach, current)
            if wider not in self._options:
                shapes = (*options.shapes, current)
                order = sorted(shapes, key=lambda each: (each.gpu_type, each.replicas, each.nodes))
                self._options[wider] = _options(tuple(order), offer)
            options = self._options[wider]
        return Candidate(job, options, current)


def _options(shapes: tuple[Shape, ...], offer: Offer) -> Options:
    return Options(
        shapes,
        offer,
        {shape: column for column, shape in enumerate(shapes)},
        np.array([shape.replicas for shape in shapes], dtype=np.int64),
        _tidy(shapes, offer),
    )


def _tidy(shapes: tuple[Shape, ...], offer: Offer) -> NDArray[np.bool_]:
    """Among several nodes, parts of a node are powers of two (or all that a job may have): the pieces then fit together
    and nodes are not left with crumbs. On one node every number is tidy."""
    if offer.nodes <= 1:
        return np.ones(len(shapes), dtype=bool)
    ends = set()
    for name in {shape.gpu_type for shape in shapes}:
        own = [shape for shape in shapes if shape.gpu_type == name]
        ends |= {own[0], own[-1]}
    return np.array(
        [
            shape.nodes > 1
            or shape in ends
            or shape.replicas & (shape.replicas - 1) == 0
            or (shape.gpu_type, shape.replicas) in offer.sizes
            for shape in shapes
        ],
        dtype=bool,
    )


def _free(snapshot: Snapshot, offers: Mapping[DeviceKind, Offer], waiting: list[Job]) -> dict[str, tuple[int, ...]]:
    devices = {(node, device) for offer in offers.values() for node, ids in offer.devices.items() for device in ids}
    for job in waiting:
        devices |= job.placement.devices if job.placement is not None else frozenset()
    if not is_mixed(snapshot):
        return {"": tuple(Counter(node for node, _ in devices).values())}
    types: dict[tuple[NodeId, str], str] = {
        (node.id, device.id): device.type for node in snapshot.nodes.values() for device in node.devices
    }
    found: dict[str, Counter[NodeId]] = {}
    for device in devices:
        found.setdefault(types[device], Counter())[device[0]] += 1
    return {name: tuple(found[name].values()) for name in sorted(found)}


def asks_for(job: Job) -> int:
    """GPUs of a job that has no choice; 0 where it has."""
    return job.spec.min_gpus if job.spec.level is not Level.SCRIPT else 0
