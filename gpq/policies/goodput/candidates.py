"""Which jobs a round decides on, and which shapes each could have. Equal questions are answered
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.mobility import is_fixed, is_leaving
from gpq.core.feasibility.shapes import (
    DeviceKind,
    Supply,
    by_type,
    feasible_on,
    is_mixed,
    kind_of,
    shape_on,
    supply,
)
from gpq.core.goodput.batches import GoodputTable
from gpq.core.model.jobs import DesiredState, Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Parts = tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]
OFFERS_KEPT = 8  # from round to round
OPTIONS_KEPT = 1024  # of each


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Devices that jobs of one kind may get. Equal offers are one object, also across rounds, so
    that earlier results are found again: `options`, by what a job asks for."""

    devices: Supply
    types: Mapping[str, Supply]  # the same by type (`shapes.by_type`)
    node_size: int  # free devices of the node that has most of them
    sizes: frozenset[tuple[str, int]]  # (type, devices) of its nodes when they are empty
    options: dict[Hashable, Options] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """What a job may get now (None: nothing). The first `tidy` shapes can be combined freely, the
    others only if their blocks are counted. `sizes` and `types` describe the first ones."""

    shapes: tuple[Shape | None, ...]
    tidy: int
    sizes: NDArray[np.int64]
    types: tuple[str, ...]


def menu_of(shapes: tuple[Shape | None, ...], tidy: int) -> Menu:
    first = shapes[:tidy]
    sizes = np.array([shape.replicas if shape else 0 for shape in first], dtype=np.int64)
    return Menu(shapes, tidy, sizes, tuple(shape.gpu_type if shape else "" for shape in first))


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Shapes that jobs may choose from, with answers to frequent questions. One object for equal
    questions. `menus` are kept with their columns (nothing: the one after the last), by the column
    of the present shape (-1: none) and the mask of the allowed ones."""

    shapes: tuple[Shape, ...]
    offer: Offer
    index: Mapping[Shape | None, int]
    replicas: NDArray[np.int64]
    tidy: NDArray[np.bool_]
    most: int  # replicas. 0 if there is no shape
    menus: dict[tuple[int, bytes], tuple[NDArray[np.int64], Menu]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job to decide on. `current` is its shape, or the shape with which it will resume."""

    job: Job
    options: Options
    current: Shape | None


@dataclass(frozen=True, slots=True)
class Contest:
    """`fixed_shapes`: of jobs that keep what they have. `free`: what is left for the others, as
    devices of each node by type ("" if all are alike). `capacities`: their sums."""

    fixed_shapes: Mapping[JobId, Shape]
    candidates: tuple[Candidate, ...]
    free: Mapping[str, tuple[int, ...]]

    @property
    def capacities(self) -> dict[str, int]:
        return {name: sum(counts) for name, counts in self.free.items()}


def field_of(snapshot: Snapshot, reach: Mapping[JobId, int] | None = None) -> Contest:
    """Everything that this round must decide. `reach`: consider no shape with more replicas, except
    the present one. Default: all shapes."""
    fixed_shapes: dict[JobId, Shape] = {}
    holders: dict[tuple[NodeId, DeviceId], JobId] = {}
    jobs = []
    for name, job in sorted(snapshot.jobs.items()):
        if job.placement is None:
            if may_start(snapshot, job):
                jobs.append(job)
        elif job.wish is not DesiredState.RUN or is_fixed(job, snapshot):
            fixed_shapes[name] = shape_on(job.placement, snapshot)
            holders.update(dict.fromkeys(job.placement.devices, name))
        else:
            jobs.append(job)
    # The same for all with the same request, because none of them holds what is taken.
    job_kinds = [(job, kind_of(job, snapshot)) for job in jobs]
    kinds = {kind: job for job, kind in job_kinds}
    offers = {kind: _offer(snapshot, supply(snapshot, job, holders)) for kind, job in kinds.items()}
    limits = reach or {}
    candidates = [
        _candidate(job, offers[kind], limits.get(job.id), snapshot) for job, kind in job_kinds
    ]
    return Contest(fixed_shapes, tuple(candidates), _free(snapshot, offers, jobs))


def _offer(snapshot: Snapshot, devices: Supply) -> Offer:
    is_mixed_cluster = is_mixed(snapshot)
    sizes: set[tuple[str, int]] = set()
    for node in devices:
        types = [device.type for device in snapshot.nodes[node].devices]
        sizes.update(Counter(types).items() if is_mixed_cluster else [("", len(types))])
    parts = tuple((name, tuple(part.items())) for name, part in by_type(devices, snapshot).items())
    return _offer_of(tuple(devices.items()), parts, frozenset(sizes))


@lru_cache(maxsize=OFFERS_KEPT)
def _offer_of(
    devices: Parts, types: tuple[tuple[str, Parts], ...], sizes: frozenset[tuple[str, int]]
) -> Offer:
    node_size = max((len(ids) for _, ids in devices), default=0)
    return Offer(dict(devices), {name: dict(part) for name, part in types}, node_size, sizes)


def _candidate(job: Job, offer: Offer, reach: int | None, snapshot: Snapshot) -> Candidate:
    spec, declaration = job.spec, job.profile.declared
    asks = (
        spec.level, spec.rigid, spec.min_gpus, spec.max_gpus, reach,
        declaration
        and (declaration.adaptive, declaration.batch_size, declaration.max_batch_size,
             declaration.min_atomic_batch),
    )  # fmt: skip
    options = offer.options.get(asks)
    if options is None:
        shapes = feasible_on(offer.types, job)
        if reach is not None:
            shapes = tuple(shape for shape in shapes if shape.replicas <= reach)
        options = _remember_options(offer, asks, shapes)
    if job.placement is None or is_leaving(job, snapshot):
        return Candidate(job, options, job.target)
    current = shape_on(job.placement, snapshot)
    if current not in options.index:
        wider_asks, shapes = (*asks, current), (*options.shapes, current)
        options = offer.options.get(wider_asks)
        if options is None:
            order = sorted(shapes, key=lambda shape: (shape.gpu_type, shape.replicas, shape.nodes))
            options = _remember_options(offer, wider_asks, tuple(order))
    return Candidate(job, options, current)


def _remember_options(offer: Offer, asks: Hashable, shapes: tuple[Shape, ...]) -> Options:
    if len(offer.options) >= OPTIONS_KEPT:
        offer.options.clear()
    replicas = [shape.replicas for shape in shapes]
    options = offer.options[asks] = Options(
        shapes,
        offer,
        {shape: column for column, shape in enumerate(shapes)},
        np.array(replicas, dtype=np.int64),
        _tidy(shapes, offer),
        max(replicas, default=0),
    )
    return options


def _tidy(shapes: tuple[Shape, ...], offer: Offer) -> NDArray[np.bool_]:
    """On several nodes, parts of a node are powers of two (or all that a job may have). Then the
    pieces fit together and leave no unusable rest. On one node every number is tidy."""
    if offer.nodes <= 1:
        return np.ones(len(shapes), dtype=bool)
    first: dict[str, Shape] = {}
    last: dict[str, Shape] = {}
    for shape in shapes:
        first.setdefault(shape.gpu_type, shape)
        last[shape.gpu_type] = shape
    ends = {*first.values(), *last.values()}
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


def _free(
    snapshot: Snapshot, offers: Mapping[DeviceKind, Offer], jobs: list[Job]
) -> dict[str, tuple[int, ...]]:
    devices = {
        (node, device)
        for offer in offers.values()
        for node, ids in offer.devices.items()
        for device in ids
    }
    for job in jobs:
        if job.placement is not None:
            devices |= job.placement.devices
    if not is_mixed(snapshot):
        return {"": tuple(Counter(node for node, _ in devices).values())}
    counts: dict[str, Counter[NodeId]] = {}
    # a server may no longer name a device that a job has
    for node in snapshot.nodes.values():
        for device in node.devices:
            if (node.id, device.id) in devices:
                counts.setdefault(device.type, Counter())[node.id] += 1
    return {name: tuple(counts[name].values()) for name in sorted(counts)}


def asks_for(job: Job) -> int:
    """GPUs of a job that has no choice. 0 if it has one."""
    if job.spec.level is Level.SCRIPT:
        return 0
    return job.spec.min_gpus


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates with the same options and offer. Rows are candidates, columns are options."""

    rows: Sequence[Candidate]
    tables: Sequence[GoodputTable | None]
    max_replicas: Sequence[int]

    @property
    def options(self) -> Options:
        return self.rows[0].options


def groups_of(
    candidates: Sequence[Candidate],
    tables: Mapping[JobId, GoodputTable | None],
    max_replicas: Mapping[JobId, int],
) -> list[Group]:
    rows_by_options: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.options.shapes:
            rows_by_options.setdefault(id(candidate.options), []).append(candidate)
    return [
        Group(
            rows, [tables[row.job.id] for row in rows], [max_replicas[row.job.id] for row in rows]
        )
        for rows in rows_by_options.values()
    ]


def speeds_of(group: Group) -> Array:
    """Goodput, rows x options. A job about which nothing is known counts as if it scaled
    perfectly."""
    replicas = group.options.replicas.astype(np.float64)
    speeds = np.stack([replicas if table is None else table.goodput for table in group.tables])
    speeds[~speeds.any(axis=1)] = replicas
    return speeds
