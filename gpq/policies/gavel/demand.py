"""What gangs need from each type: steps per second, and the steps that are left. True values if an
oracle knows them, otherwise estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpq.core.feasibility.shapes import Supply, node_counts, pack
from gpq.core.goodput import estimates
from gpq.core.model.jobs import HOLDS_DEVICES, Job
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds

UNKNOWN_SECONDS: Seconds = 60.0  # assumed at least to remain for a job of unknown length


@dataclass(frozen=True, slots=True)
class Demand:
    """One gang, with the batch size that it asked for."""

    job: JobId
    shapes: Mapping[str, Shape]  # the packed shape on each type where it fits
    speeds: Mapping[str, float]  # steps per second there, > 0
    steps: float  # steps left
    total: float  # steps left and done
    age: Seconds  # since submission

    @property
    def gpus(self) -> int:
        return next(iter(self.shapes.values())).replicas


def demands(
    snapshot: Snapshot, jobs: Sequence[Job], parts: Mapping[JobId, Mapping[str, Supply]]
) -> tuple[Demand, ...]:
    """The demand of each job that fits on at least one type. A job of unknown speed counts as the
    median of the others."""
    shapes = {job.id: _pack(job, parts[job.id]) for job in jobs}
    placeable_jobs = [job for job in jobs if shapes[job.id]]
    speeds = {job.id: _speeds(job, snapshot, shapes[job.id]) for job in placeable_jobs}
    typical_speed = median(
        sorted(speed for type_speeds in speeds.values() for speed in type_speeds.values()) or [1.0]
    )
    return tuple(
        _demand(
            job,
            snapshot,
            shapes[job.id],
            speeds[job.id] or dict.fromkeys(shapes[job.id], typical_speed),
        )
        for job in placeable_jobs
    )


def _pack(job: Job, parts: Mapping[str, Supply]) -> dict[str, Shape]:
    shapes = {
        name: pack(job.spec.min_gpus, node_counts(part), job.spec.level, name)
        for name, part in parts.items()
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _speeds(job: Job, snapshot: Snapshot, shapes: Mapping[str, Shape]) -> dict[str, float]:
    """Steps per second at the requested batch size. Types on which it cannot run, or of unknown
    speed, are left out."""
    oracle = snapshot.oracles.get(job.id)
    if oracle is not None:
        times = {name: oracle.step_seconds(shape) for name, shape in shapes.items()}
        return {name: 1.0 / time for name, time in times.items() if time}
    batch = _batch(job)
    choices = {
        name: estimates.best_batch(job, shape, at_most=batch) for name, shape in shapes.items()
    }
    return {
        name: choice.throughput / choice.total_batch
        for name, choice in choices.items()
        if choice is not None
    }


def _batch(job: Job) -> int:
    declaration = job.profile.declared
    return job.spec.batch_size or (declaration.batch_size if declaration is not None else 0)


def _demand(
    job: Job, snapshot: Snapshot, shapes: Mapping[str, Shape], speeds: Mapping[str, float]
) -> Demand:
    progress = job.profile.progress
    fraction = 0.0
    if progress is not None and progress.epochs > 0:
        fraction = min(progress.fraction, 1.0)
    steps = total = _steps_left(job, snapshot, max(speeds.values()))
    if fraction < 1.0:
        total = steps / (1.0 - fraction)
    usable_shapes = {name: shapes[name] for name in speeds}
    return Demand(
        job.id, usable_shapes, speeds, steps, total, max(snapshot.now - job.submitted_at, 0.0)
    )


def _steps_left(job: Job, snapshot: Snapshot, speed: float) -> float:
    """Never less than one. A job of unknown length has as much ahead as behind it (Lindy's law)."""
    if job.id in snapshot.oracles:
        return max(snapshot.oracles[job.id].remaining_steps, 1.0)
    steps = _steps_to_declared_end(job)
    if steps is not None:
        return max(steps, 1.0)
    run_seconds = job.run_seconds
    if job.state in HOLDS_DEVICES and job.started_at is not None:
        run_seconds += snapshot.now - job.started_at
    return max(max(run_seconds, UNKNOWN_SECONDS) * speed, 1.0)


def _steps_to_declared_end(job: Job) -> float | None:
    """None if no length was declared."""
    declaration, left, batch = job.profile.declared, job.profile.length_left, _batch(job)
    if declaration is None or declaration.dataset_size <= 0 or batch <= 0:
        return None
    if left is not None:
        return left / batch
    if declaration.epochs > 0:
        return declaration.dataset_size * declaration.epochs / batch
    return None


def without(demand: Demand, gpu_type: str) -> Demand:
    """The same, without one type."""
    return replace(
        demand,
        shapes={name: shape for name, shape in demand.shapes.items() if name != gpu_type},
        speeds={name: speed for name, speed in demand.speeds.items() if name != gpu_type},
    )
