"""What gpq believes of a job: its fitted model, its goodput at a shape, its curve over GPU counts, its speedup.

Reads a job's profile; None everywhere means "not known yet", never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpq.core.batches import BatchLimits, limits_of
from gpq.core.correction import Correction, correction
from gpq.core.fitting import fit
from gpq.core.goodput import (
    BatchChoice,
    GoodputTable,
    GradientStats,
    ThroughputParams,
    columns_of,
    efficiency,
    goodput,
    goodput_table,
    stats_of,
    throughput,
)
from gpq.core.models import Job, Shape
from gpq.core.profile import Declared, Noise, Profile, ProfileRow


@dataclass(frozen=True, slots=True)
class Model:
    """The throughput model and gradient statistics of one job."""

    params: ThroughputParams
    stats: GradientStats | None
    limits: BatchLimits
    correction: Correction


@lru_cache(maxsize=4096)
def fitted(rows: tuple[ProfileRow, ...]) -> ThroughputParams | None:
    """`fitting.fit`, remembered: a round asks for the same profile many times."""
    return fit(rows)


Asked = tuple[tuple[ProfileRow, ...], Declared, Noise | None]

LEAST_REMEMBERED = 4096  # models
_models: dict[tuple[int, int, int, str], tuple[Asked, Model | None]] = {}  # oldest first
_room = LEAST_REMEMBERED


def expect(jobs: int) -> None:
    """Make room for the models of so many jobs, so that a large queue is not fitted anew in every round."""
    global _room
    _room = max(LEAST_REMEMBERED, 3 * jobs)


def model_of(profile: Profile, gpu_type: str = "") -> Model | None:
    """None until the script has declared a batch and one configuration was timed."""
    basis, declared, noise = profile.basis, profile.declared, profile.noise_basis
    if declared is None or not basis:
        return None
    key = (id(basis), id(declared), id(noise), gpu_type)  # what was asked is held below, so its ids stay its own
    known = _models.get(key)
    if known is None:
        known = _models[key] = ((basis, declared, noise), _model(basis, declared, noise, gpu_type))
        if len(_models) > _room:
            with suppress(KeyError, StopIteration, RuntimeError):  # readers ask beside the loop
                del _models[next(iter(_models))]
    return known[1]


def _model(basis: tuple[ProfileRow, ...], declared: Declared, noise: Noise | None, gpu_type: str) -> Model | None:
    rows = rows_on(basis, gpu_type)
    limits, params = limits_of(declared, gpu_type), fitted(rows)
    if limits is None or params is None:
        return None
    return Model(params, stats_of(noise), limits, correction(rows, params))


@lru_cache(maxsize=8192)
def rows_on(rows: tuple[ProfileRow, ...], gpu_type: str) -> tuple[ProfileRow, ...]:
    """Rows measured on one type. Where there are none, those of the type with most weight, as if it were as fast
    (`transfer.informed` puts scaled rows in before); also where no type is asked for."""
    weights: dict[str, float] = {}
    for row in rows:
        weights[row.gpu_type] = weights.get(row.gpu_type, 0.0) + row.weight
    if len(weights) <= 1:
        return rows
    wanted = gpu_type if gpu_type in weights else max(sorted(weights), key=lambda name: weights[name])
    return tuple(row for row in rows if row.gpu_type == wanted)


@lru_cache(maxsize=16384)
def _table(model: Model, shapes: tuple[Shape, ...]) -> GoodputTable:
    nodes = np.array([shape.nodes for shape in shapes], dtype=np.int64)
    replicas = np.array([shape.replicas for shape in shapes], dtype=np.int64)
    factor = model.correction.factor(nodes, replicas)
    return goodput_table(model.params, model.stats, model.limits, nodes, replicas, factor)


def table(job: Job, shapes: Sequence[Shape]) -> GoodputTable | None:
    """Best batch and goodput of every shape, None while the job has no model."""
    if not shapes or model_of(job.profile, shapes[0].gpu_type) is None:
        return None
    return _tables(job.profile, tuple(shapes))


def _tables(profile: Profile, shapes: tuple[Shape, ...]) -> GoodputTable:
    """One table of shapes of several types, each type's by its own model; in the order of `shapes`."""
    types = list(dict.fromkeys(shape.gpu_type for shape in shapes))
    parts = []
    for name in types:
        model = model_of(profile, name)
        assert model is not None  # rows_on finds some for every type
        parts.append(_table(model, tuple(shape for shape in shapes if shape.gpu_type == name)))
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(
        np.concatenate([[i for i, shape in enumerate(shapes) if shape.gpu_type == name] for name in types])
    )
    return GoodputTable(*(np.concatenate(columns)[order] for columns in zip(*map(columns_of, parts), strict=True)))


def best_batch(job: Job, shape: Shape, at_most: int | None = None) -> BatchChoice | None:
    """The best batch at `shape`, its total at most `at_most`; None when not known or none fits."""
    model = model_of(job.profile, shape.gpu_type)
    if model is None:
        return None
    limits = model.limits
    if at_most is not None:
        limits = replace(limits, maximum=max(min(limits.maximum, at_most), limits.base))
    choice = _table(replace(model, limits=limits), (shape,)).choice(0)
    return choice if choice.goodput > 0 else None


def goodput_of(job: Job, shape: Shape, atomic_batch: int, accum_steps: int) -> float | None:
    """Modelled goodput of one batch at one shape, examples of the base batch's worth per second."""
    model = model_of(job.profile, shape.gpu_type)
    if model is None:
        return None
    return _goodput(model, shape.nodes, shape.replicas, atomic_batch, accum_steps)


@lru_cache(maxsize=8192)
def _goodput(model: Model, nodes: int, replicas: int, atomic_batch: int, accum_steps: int) -> float:
    value = goodput(model.params, model.stats, model.limits.base, nodes, replicas, atomic_batch, accum_steps)
    return float(value) / _factor(model, nodes, replicas)


def _factor(model: Model, nodes: int, replicas: int) -> float:
    """What the correction multiplies a predicted time by."""
    return float(model.correction.factor(np.array([nodes]), np.array([replicas]))[0])


@dataclass(frozen=True, slots=True)
class Now:
    """How a running job does: measured throughput times modelled efficiency."""

    throughput: float
    efficiency: float
    goodput: float


def now_of(job: Job) -> Now | None:
    """None when the job does not run or has reported nothing yet."""
    profile, placement = job.profile, job.placement
    model = model_of(profile, placement.gpu_type) if placement is not None else None
    if model is None or placement is None or profile.atomic_batch <= 0:
        return None
    total = placement.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    nodes, replicas = len(placement.parts), placement.replicas
    speed = profile.samples_per_second
    if not speed:
        modelled = float(throughput(model.params, nodes, replicas, profile.atomic_batch, profile.accum_steps))
        speed = modelled / _factor(model, nodes, replicas)
    effective = min(float(efficiency(model.stats, model.limits.base, total)), 1.0)
    return Now(speed, effective, speed * effective)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    gpus: int
    goodput: float
    total_batch: int
    speedup: float  # over the first point


def curve(job: Job, shapes: Sequence[Shape]) -> tuple[CurvePoint, ...]:
    """The goodput curve over `shapes` (fewest GPUs first); empty while nothing is known."""
    found = table(job, shapes)
    if found is None:
        return ()
    rows = [(shape, found.choice(index)) for index, shape in enumerate(shapes)]
    usable = [(shape, choice) for shape, choice in rows if choice.goodput > 0]
    if not usable:
        return ()
    base = usable[0][1].goodput
    return tuple(
        CurvePoint(shape.replicas, choice.goodput, choice.total_batch, choice.goodput / base)
        for shape, choice in usable
    )


def remaining_seconds(job: Job, now: float) -> float | None:
    """Run time left at the present speed, from the share of the declared length that is done; None when not known."""
    progress = job.profile.progress
    if progress is None or progress.fraction <= 0 or progress.epochs <= 0:
        return None
    spent = job.run_seconds + (now - job.started_at if job.started_at is not None else 0.0)
    speed = now_of(job)
    declared = job.profile.declared
    if speed is not None and declared is not None and declared.dataset_size > 0 and speed.throughput > 0:
        # An epoch is one pass over the data, whatever the batch.
        return (1.0 - progress.fraction) * declared.dataset_size * progress.epochs / speed.throughput
    return spent * (1.0 - progress.fraction) / progress.fraction if spent > 0 else None
