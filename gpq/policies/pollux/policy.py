"""Pollux (OSDI'21): every minute a seeded genetic search for the allocation with the fairest
goodput. Names the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpq.core.feasibility.mobility import is_leaving
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import placeable
from gpq.policies.pollux.problem import Front, Share, problem_of, shares
from gpq.policies.shared.sizing import Contender, entrants
from gpq.policies.solvers.genetic_search import GENERATIONS, search


@dataclass(slots=True)
class Pollux:
    """Maximises the harmonic mean of speedups over the fair share, minus the cost of restarts. If
    two jobs want the same GPU, the job with the least service so far gets it. A job may grow to
    twice the replicas that it was seen with, on GPUs of one type.

    It keeps two things between rounds: the Pareto front, where the next search starts, and its last
    choice.
    """

    name = "pollux"
    generations: int = GENERATIONS
    _fronts: dict[str, Front] = field(default_factory=dict)
    _last_layouts: dict[JobId, Layout] = field(default_factory=dict)

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)
        contenders = sorted(round_.contenders, key=lambda c: _order(c.job, snapshot.now))
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
        if (
            is_moving
            and layout is not None
            and job.target is not None
            and layout.shape == job.target
        ):
            return layout
        if job.placement is None:
            return None
        return Layout(job.placement.counts, contender.gpu_type)


def _order(job: Job, now: float) -> tuple[int, float, float, int]:
    """Least service first, and a higher priority before that."""
    return -job.spec.priority, job.service_at(now), job.submitted_at, job.id
