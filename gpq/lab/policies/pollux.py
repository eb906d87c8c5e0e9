"""Pollux (OSDI'21): every minute a seeded genetic search for the allocation with the fairest
goodput. Names the nodes.

The search is in `genetic_search`, and `pollux_model` predicts step times as the paper does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import numpy as np

from gpq.core.feasibility.mobility import is_leaving
from gpq.core.feasibility.shapes import nodes_up, shape_types
from gpq.core.goodput.batches import BatchLimits, limits_of
from gpq.core.goodput.goodput import GradientStats, stats_of
from gpq.core.goodput.models import rows_on
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import placeable
from gpq.lab.policies.genetic_search import GENERATIONS, Floats, Ints, Problem, search
from gpq.lab.policies.pollux_model import PolluxParams, best_batches, fit
from gpq.lab.policies.sizing import Contender, Entrants, entrants

FLOOR = 1e-3  # utility of a job without GPUs
GROWTH = 2  # times the profiled replicas
MOST_NODES = 16  # for one job, because Pollux's measurements end there
_YOUNGEST = 1.0  # s. At age 0 the restart factor would be 0, so that no start would be worth it


@dataclass(slots=True)
class Pollux(Policy):
    """Maximises the harmonic mean of speedups over the fair share, minus the cost of restarts. If
    two jobs want the same GPU, the job with the least service so far gets it. A job may grow to
    twice the replicas that it was seen with, on GPUs of one type.

    It keeps two things between rounds: the Pareto front, where the next search starts, and its last
    choice.
    """

    name = "pollux"
    sentence = "Pollux (OSDI'21): a genetic search for fair goodput"
    generations: int = GENERATIONS
    _fronts: dict[str, Front] = field(default_factory=dict)
    _last_layouts: dict[JobId, Layout] = field(default_factory=dict)

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)

        def order(contender: Contender) -> tuple[int, float, float, int]:
            """Least service first, and a higher priority before that."""
            job = contender.job
            return -job.spec.priority, job.service_at(snapshot.now), job.submitted_at, job.id

        contenders = sorted(round_.contenders, key=order)
        share = shares(snapshot, round_)
        layouts: dict[JobId, Layout] = {}
        for number, gpu_type in enumerate(sorted(share)):
            rivals = [contender for contender in contenders if contender.gpu_type == gpu_type]
            fixed_shapes = {
                name: shape
                for name, shape in round_.fixed_shapes.items()
                if shape.gpu_type == gpu_type
            }
            if rivals:
                luck = np.random.default_rng(
                    [abs(snapshot.config.seed), int(abs(snapshot.now) * 1000), number]
                )
                layouts |= self._search(
                    snapshot, gpu_type, rivals, fixed_shapes, share[gpu_type], luck
                )
        allocation = placeable(snapshot, {**round_.fixed_shapes, **layouts})
        self._last_layouts = {
            name: layout for name, layout in layouts.items() if name in allocation
        }
        return allocation

    def _search(
        self,
        snapshot: Snapshot,
        gpu_type: str,
        rivals: Sequence[Contender],
        fixed_shapes: Mapping[JobId, Shape],
        share: Share,
        luck: np.random.Generator,
    ) -> dict[JobId, Layout]:
        current_layouts = {
            c.job.id: layout for c in rivals if (layout := self._present(c, snapshot)) is not None
        }
        problem, nodes = problem_of(snapshot, rivals, current_layouts, fixed_shapes, share)
        jobs = tuple(contender.job.id for contender in rivals)
        best, front = search(
            problem,
            self._fronts.get(gpu_type, Front()).map_states(jobs, nodes),
            luck,
            self.generations,
        )
        self._fronts[gpu_type] = Front(jobs, tuple(nodes), front)
        rows = {
            job: [(nodes[at], int(row[at])) for at in np.flatnonzero(row)]
            for job, row in zip(jobs, best, strict=True)
        }
        return {job: Layout(tuple(parts), gpu_type) for job, parts in rows.items() if parts}

    def _present(self, contender: Contender, snapshot: Snapshot) -> Layout | None:
        """Its layout. If the job is being moved, the layout that it moves to, if that is still
        known."""
        job, layout = contender.job, self._last_layouts.get(contender.job.id)
        is_moving = job.placement is None or is_leaving(job, snapshot)
        if is_moving and layout is not None and layout.shape == job.target:
            return layout
        if job.placement is None:
            return None
        return Layout(job.placement.counts, contender.gpu_type)


@dataclass(frozen=True, slots=True)
class Share:
    """The reference of a job on one type of GPU: G GPUs on N nodes, and its fair share of them,
    ceil(G / J), as if all of it were on one node (as in Pollux's artifact)."""

    nodes: int
    gpus: int
    replicas: int

    @property
    def scale(self) -> float:
        """Speedups are counted in nodes: one replica at perfect speedup over the share is N / G."""
        return self.nodes / self.gpus


@dataclass(frozen=True, slots=True)
class Front:
    """The Pareto front of the last search: states x jobs x nodes."""

    jobs: tuple[JobId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    states: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int16))

    def map_states(self, jobs: Sequence[JobId], nodes: Sequence[NodeId]) -> Ints:
        """Its states for these jobs and nodes, by their names. New ones have nothing, and missing
        ones are dropped."""
        states = np.zeros((len(self.states), len(jobs), len(nodes)), dtype=np.int16)
        rows = [at for at, job in enumerate(jobs) if job in self.jobs]
        columns = [at for at, node in enumerate(nodes) if node in self.nodes]
        old = np.ix_(
            [self.jobs.index(jobs[at]) for at in rows],
            [self.nodes.index(nodes[at]) for at in columns],
        )
        new = np.ix_(rows, columns)
        if rows and columns:
            states[:, new[0], new[1]] = self.states[:, old[0], old[1]]
        return states


def shares(snapshot: Snapshot, round_: Entrants) -> dict[str, Share]:
    """By type of GPU. Devices of nodes that answer count, even if they cannot be used now."""
    homes = [contender.gpu_type for contender in round_.contenders]
    homes += [shape.gpu_type for shape in round_.fixed_shapes.values()]
    share_by_type = {}
    for name in sorted({*shape_types(snapshot), *homes}):
        counts = [
            sum(d.type == name or not name for d in node.devices) for node in nodes_up(snapshot)
        ]
        gpus = max(sum(counts), 1)
        share_by_type[name] = Share(
            max(sum(count > 0 for count in counts), 1), gpus, ceil(gpus / max(homes.count(name), 1))
        )
    return share_by_type


def speedups(job: Job, gpu_type: str, share: Share, most: int) -> Floats:
    """Goodput relative to that on the fair share, [on several nodes][replicas, 0 to `most`]. A job
    that was never profiled counts as perfect, K / K_f. So does one with no batch size that fits the
    share, and one that is not elastic, because it never chooses."""
    declaration, table = job.profile.declared, None
    if declaration is not None and job.elastic:
        limits, params = limits_of(declaration, gpu_type), fit(rows_on(job.profile.basis, gpu_type))
        if limits is not None and params is not None:
            stats = stats_of(job.profile.noise_basis)
            table = _model(params, stats, limits, share.replicas, most)
    if table is None:
        table = np.tile(np.arange(most + 1) / share.replicas, (2, 1))
    return table


@lru_cache(maxsize=1024)
def _model(
    params: PolluxParams, stats: GradientStats | None, limits: BatchLimits, fair: int, most: int
) -> Floats | None:
    counts = np.arange(1, most + 1)
    nodes = np.concatenate([np.ones(most), np.full(most, 2), [1]])
    goodput = best_batches(params, stats, limits, nodes, np.concatenate([counts, counts, [fair]]))[
        0
    ]
    if goodput[-1] <= 0:
        return None
    table = np.zeros((2, most + 1))
    table[:, 1:] = goodput[:-1].reshape(2, most) / goodput[-1]
    return table


def restart_factor(job: Job, now: float, config: Config) -> float:
    """(age - R d) / (age + d) for R restarts so far and d seconds each, at least 0: what any change
    leaves of a speedup."""
    age = max(now - job.submitted_at, _YOUNGEST)
    return max(age - job.restarts * config.restart_seconds, 0.0) / (age + config.restart_seconds)


def growth_cap(contender: Contender) -> int:
    """Twice the profiled replicas, at least its minimum and at most its maximum."""
    job = contender.job
    return max(contender.least, min(contender.most, max(GROWTH * job.profile.max_replicas, 1)))


def problem_of(
    snapshot: Snapshot,
    contenders: Sequence[Contender],
    current_layouts: Mapping[JobId, Layout],
    fixed_shapes: Mapping[JobId, Shape],
    share: Share,
) -> tuple[Problem, list[NodeId]]:
    """The problem of the jobs of one type, in this order, and the nodes of its columns.
    `current_layouts`: what each has now, or is about to have. `fixed_shapes`: of the jobs of this
    type that must not move."""
    nodes = sorted({node for contender in contenders for node in contender.offer})
    room, capacity = _room(contenders, nodes)
    base = _base(contenders, current_layouts, nodes, capacity)
    most = np.array([growth_cap(contender) for contender in contenders], dtype=np.int16)
    largest = int(max(most.max(), base.sum(axis=1).max()))
    speedup = np.stack([speedups(c.job, c.gpu_type, share, largest) for c in contenders])
    factor = np.array([restart_factor(c.job, snapshot.now, snapshot.config) for c in contenders])
    utility = np.stack([speedup, speedup * factor[:, None, None]], axis=1) * share.scale
    across = {
        node
        for name, shape in fixed_shapes.items()
        if shape.nodes > 1
        for node in snapshot.jobs[name].nodes
    }
    problem = Problem(
        base,
        room,
        capacity,
        np.array([contender.least for contender in contenders], dtype=np.int16),
        most,
        np.array(
            [MOST_NODES if contender.spreads else 1 for contender in contenders], dtype=np.int16
        ),
        np.array([node in across for node in nodes], dtype=bool),
        1.0 / (utility + FLOOR),
        speedup,
        _fixed_jobs(snapshot, fixed_shapes, share),
    )
    return problem, nodes


def _room(contenders: Sequence[Contender], nodes: Sequence[NodeId]) -> tuple[Ints, Ints]:
    """(devices of each node that each job could have, devices of each node)"""
    column = {node: at for at, node in enumerate(nodes)}
    room = np.zeros((len(contenders), len(nodes)), dtype=np.int16)
    devices: list[set[str]] = [set() for _ in nodes]
    for row, contender in enumerate(contenders):
        for node, ids in contender.offer.items():
            room[row, column[node]] = len(ids)
            devices[column[node]].update(ids)
    return room, np.array([len(ids) for ids in devices], dtype=np.int16)


def _base(
    contenders: Sequence[Contender],
    current_layouts: Mapping[JobId, Layout],
    nodes: Sequence[NodeId],
    capacity: Ints,
) -> Ints:
    """What each job has on each node. Jobs that hold devices fit together. What others were about
    to have counts only if it still fits."""
    base = np.zeros((len(contenders), len(nodes)), dtype=np.int16)
    for row in sorted(range(len(base)), key=lambda row: contenders[row].job.placement is None):
        layout = current_layouts.get(contenders[row].job.id)
        if layout is None:
            continue
        parts = dict(layout.parts)
        counts = np.array([parts.get(node, 0) for node in nodes], dtype=np.int16)
        has_room = (base.sum(axis=0) + counts <= capacity).all()
        if counts.sum() == layout.shape.replicas and has_room:
            base[row] = counts
    return base


def _fixed_jobs(
    snapshot: Snapshot, fixed_shapes: Mapping[JobId, Shape], share: Share
) -> tuple[float, int]:
    cost = 0.0
    for name in sorted(fixed_shapes):
        shape = fixed_shapes[name]
        table = speedups(snapshot.jobs[name], shape.gpu_type, share, shape.replicas)
        cost += 1.0 / (float(table[int(shape.nodes > 1), shape.replicas]) * share.scale + FLOOR)
    return cost, len(fixed_shapes)
