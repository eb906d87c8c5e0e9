"""How long a gang still takes: what policies that look ahead believe of it. Not known is None, never zero."""

from __future__ import annotations

from gpq.core import estimates
from gpq.core.models import Job, Shape, Snapshot
from gpq.core.shapes import by_type, is_leaving, kind_of, node_counts, packed, shape_on, supply
from gpq.core.units import Seconds
from gpq.core.weights import seconds_at_best


class Lengths:
    """Of the jobs of one snapshot, each with exactly the GPUs that it asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._counts: dict[tuple[str, int, str], dict[str, list[int]]] = {}

    def left(self, job: Job) -> Seconds | None:
        """Run time still to come, where it is or else on the best type: of the oracle, else of its declared length; at
        most what its time limit leaves. None where nothing of these is known."""
        known, limit = self._known(job), job.spec.time_limit
        if limit is None:
            return known
        running = max(self._snapshot.now - job.started_at, 0.0) if job.started_at is not None else 0.0
        bound = max(limit - job.run_seconds - running, 0.0)
        return bound if known is None else min(known, bound)

    def to_end(self, job: Job) -> Seconds | None:
        """The same if it were to run from now on: who does not run pays a start, as long as its last one or as assumed."""
        left = self.left(job)
        if left is None or self._stays(job):
            return left
        return left + (
            job.restart_seconds if job.restart_seconds is not None else self._snapshot.config.restart_seconds
        )

    def packed(self, job: Job) -> tuple[Shape, ...]:
        """Its gang on as few nodes as can be, alone on the cluster: a shape for each type that has room for it."""
        shapes = (
            packed(job.spec.min_gpus, counts, job.spec.level, name) for name, counts in self._counts_of(job).items()
        )
        return tuple(shape for shape in shapes if shape is not None)

    def _known(self, job: Job) -> Seconds | None:
        oracle = self._snapshot.oracles.get(job.id)
        if oracle is not None:
            here = (shape_on(job.placement, self._snapshot),) if job.placement is not None else ()
            shapes = here if self._stays(job) else self.packed(job)
            steps = [step for shape in shapes if (step := oracle.step_seconds(shape)) is not None]
            return oracle.remaining_steps * min(steps) if steps else None
        told = estimates.remaining_seconds(job, self._snapshot.now)
        if told is not None and self._stays(job):
            return told
        modelled = seconds_at_best(job, self.packed(job))
        return modelled if modelled is not None else told

    def _stays(self, job: Job) -> bool:
        return job.placement is not None and not is_leaving(job, self._snapshot)

    def _counts_of(self, job: Job) -> dict[str, list[int]]:
        """Devices that it could use, by type, then node, most first."""
        kind = kind_of(job.spec)
        if kind not in self._counts:
            parts = by_type(supply(self._snapshot, job, {}), self._snapshot)
            self._counts[kind] = {name: node_counts(part) for name, part in parts.items()}
        return self._counts[kind]
