"""How long a job still takes: what is left of its declared length, and what policies that look
ahead assume about a gang. Unknown is None or infinite, never zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.mobility import is_leaving
from gpq.core.feasibility.shapes import (
    DeviceKind,
    by_type,
    kind_of,
    node_counts,
    pack,
    shape_on,
    supply,
)
from gpq.core.goodput import estimates
from gpq.core.goodput.batches import GoodputTable
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds


class Lengths:
    """Lengths of the jobs of one snapshot, each with exactly the GPUs that it asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._counts: dict[DeviceKind, dict[str, list[int]]] = {}

    def left(self, job: Job) -> Seconds | None:
        """Run time still to come on its present GPUs, otherwise on the best type. An oracle knows
        it, otherwise the declared length says it, and the time limit bounds it. None if all are
        unknown."""
        estimate, limit = self._estimate(job), job.spec.time_limit
        if limit is None:
            return estimate
        running = 0.0
        if job.started_at is not None:
            running = max(self._snapshot.now - job.started_at, 0.0)
        bound = max(limit - job.run_seconds - running, 0.0)
        if estimate is None:
            return bound
        return min(estimate, bound)

    def to_end(self, job: Job) -> Seconds | None:
        """The same if it ran from now on. A job that does not run pays for a start, as measured
        last time or as assumed."""
        seconds = self.left(job)
        if seconds is None or self._stays(job):
            return seconds
        return seconds + self._snapshot.config.restart_cost(job)

    def pack(self, job: Job) -> tuple[Shape, ...]:
        """Its gang on as few nodes as possible, alone on the cluster: a shape for each type that
        has room for it."""
        kind = kind_of(job, self._snapshot)
        if kind not in self._counts:
            # devices that it could use, by type, then by node, the largest count first
            parts = by_type(supply(self._snapshot, job, {}), self._snapshot)
            self._counts[kind] = {name: node_counts(part) for name, part in parts.items()}
        shapes = (
            pack(job.spec.min_gpus, counts, job.spec.level, name)
            for name, counts in self._counts[kind].items()
        )
        return tuple(shape for shape in shapes if shape is not None)

    def _estimate(self, job: Job) -> Seconds | None:
        oracle = self._snapshot.oracles.get(job.id)
        if oracle is not None:
            shapes = self.pack(job)
            if job.placement is not None and self._stays(job):
                shapes = (shape_on(job.placement, self._snapshot),)
            steps = [step for shape in shapes if (step := oracle.step_seconds(shape)) is not None]
            if not steps:
                return None
            return oracle.remaining_steps * min(steps)
        forecast = estimates.remaining_seconds(job, self._snapshot.now)
        if forecast is not None and self._stays(job):
            return forecast
        model_seconds = seconds_at_best(job, self.pack(job))
        if model_seconds is not None:
            return model_seconds
        return forecast

    def _stays(self, job: Job) -> bool:
        return job.placement is not None and not is_leaving(job, self._snapshot)


def seconds_left(
    jobs: Sequence[Job], tables: Sequence[GoodputTable | None], options: int
) -> NDArray[np.float64]:
    """What is left of the declared lengths, jobs x shapes of their tables. Infinite if length or
    speed are unknown."""
    speeds = np.zeros((len(jobs), options))
    examples = np.zeros(len(jobs))
    for row, (job, table) in enumerate(zip(jobs, tables, strict=True)):
        left, declared = job.profile.length_left, job.profile.declared
        if table is not None and left is not None and declared is not None:
            speeds[row] = table.goodput if declared.statistical else table.throughput
            examples[row] = left
    seconds = np.full(speeds.shape, np.inf)
    np.divide(examples[:, None], speeds, out=seconds, where=speeds > 0)
    return seconds


def seconds_at_best(job: Job, shapes: tuple[Shape, ...]) -> Seconds | None:
    """What is left of the declared length at the fastest shape. None if length or speed are
    unknown."""
    times = seconds_left([job], [estimates.table(job, shapes)], len(shapes))
    if not np.isfinite(times).any():
        return None
    return float(times.min())
