"""What gpq believes about a job according to its model: its goodput at a shape, its curve over GPU
counts, its speedup.

Reads a job's profile. None always means "not known yet", never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.batches import (
    BatchChoice,
    GoodputTable,
    Question,
    columns_of,
    goodput_tables,
)
from gpq.core.goodput.goodput import (
    GradientStats,
    efficiency,
    goodput,
    stack,
    throughput,
)
from gpq.core.goodput.models import Memo, Model, model_of, models_of
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape

ANY = 1 << 62  # examples: a batch size without limit

Sought = tuple[Model, tuple[Shape, ...], int]  # shapes, and the largest batch size allowed on them


def _compute(questions: Sequence[Sought]) -> list[GoodputTable]:
    answers = []
    for model, shapes, at_most in questions:
        nodes, replicas = _columns(shapes)
        limits, factor = model.limits, model.correction.factor(nodes, replicas)
        if at_most < limits.maximum:
            limits = replace(limits, maximum=max(at_most, limits.base))
        answers.append(Question(model.params, model.stats, limits, nodes, replicas, factor))
    return goodput_tables(answers)


_goodput_tables: Memo[Sought, GoodputTable] = Memo(_compute, 16384)


@lru_cache(maxsize=1024)
def _columns(shapes: tuple[Shape, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Servers and replicas. Read only."""
    nodes = np.array([shape.nodes for shape in shapes], dtype=np.int64)
    return nodes, np.array([shape.replicas for shape in shapes], dtype=np.int64)


def table(job: Job, shapes: Sequence[Shape]) -> GoodputTable | None:
    """Best batch and goodput of every shape. None while the job has no model."""
    return tables([(job, tuple(shapes))])[0]


def tables(requests: Sequence[tuple[Job, tuple[Shape, ...]]]) -> list[GoodputTable | None]:
    """`table` of many jobs. Unknown answers are computed together."""
    parts: list[tuple[int, tuple[Shape, ...], str]] = []
    for number, (_, shapes) in enumerate(requests):
        types = dict.fromkeys(shape.gpu_type for shape in shapes)
        for name in types:
            part = tuple(shape for shape in shapes if shape.gpu_type == name)
            parts.append((number, part if len(types) > 1 else shapes, name))
    models = models_of((requests[number][0].profile, name) for number, _, name in parts)
    part_tables = _goodput_tables.known(
        [
            (model, part, ANY) if model is not None else None
            for (_, part, _), model in zip(parts, models, strict=True)
        ]
    )
    tables_by_job: dict[int, list[GoodputTable]] = {}
    for (number, _, _), part_table in zip(parts, part_tables, strict=True):
        if part_table is not None:
            tables_by_job.setdefault(number, []).append(part_table)
    return [
        _join(tables_by_job[number], shapes) if number in tables_by_job else None
        for number, (_, shapes) in enumerate(requests)
    ]


def _join(parts: Sequence[GoodputTable], shapes: tuple[Shape, ...]) -> GoodputTable:
    """One table of shapes of several types, in the order of `shapes`. A job with a model has one
    for every type."""
    if len(parts) == 1:
        return parts[0]
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys(s.gpu_type for s in shapes))}
    # where each shape is in the parts one after the other
    order = np.argsort(np.argsort([ranks[shape.gpu_type] for shape in shapes], kind="stable"))
    return GoodputTable(
        *(np.concatenate(columns)[order] for columns in zip(*map(columns_of, parts), strict=True))
    )


def best_batch(job: Job, shape: Shape, at_most: int = ANY) -> BatchChoice | None:
    """The best batch at `shape` of at most `at_most` examples. None if not known or none fits."""
    model = model_of(job.profile, shape.gpu_type)
    if model is None:
        return None
    choice = _goodput_tables.one((model, (shape,), at_most)).choice(0)
    return choice if choice.goodput > 0 else None


@dataclass(frozen=True, slots=True)
class Prospect:
    """The best batch within a limit (None if none fits), and the goodput of the batch in use."""

    best: BatchChoice | None
    now: float


def prospects(requests: Sequence[tuple[Job, Shape, int, int, int]]) -> list[Prospect | None]:
    """For jobs at a shape with a given micro-batch and accumulation, and a batch of at most so many
    examples. None while a job has no model. Unknown answers are computed together."""
    models = models_of((job.profile, shape.gpu_type) for job, shape, *_ in requests)
    return _prospects.known(
        [
            (model, shape, at_most, atomic, accum) if model is not None else None
            for (_, shape, at_most, atomic, accum), model in zip(requests, models, strict=True)
        ]
    )


Chance = tuple[Model, Shape, int, int, int]


def _look(chances: Sequence[Chance]) -> list[Prospect]:
    tables = _goodput_tables.many(
        [(model, (shape,), at_most) for model, shape, at_most, _, _ in chances]
    )
    in_use = _goodputs(
        [(model, shape, atomic, accum) for model, shape, _, atomic, accum in chances]
    )
    prospects = []
    for table, now in zip(tables, in_use, strict=True):
        best = table.choice(0)
        prospects.append(Prospect(best if best.goodput > 0 else None, now))
    return prospects


_prospects: Memo[Chance, Prospect] = Memo(_look, 16384)


def goodput_of(job: Job, shape: Shape, atomic_batch: int, accum_steps: int) -> float | None:
    """Modelled goodput of one batch at one shape, in examples per second at the base batch size."""
    model = model_of(job.profile, shape.gpu_type)
    if model is None:
        return None
    return _goodputs([(model, shape, atomic_batch, accum_steps)])[0]


def _goodputs(batches: Sequence[tuple[Model, Shape, int, int]]) -> list[float]:
    """For models at a shape with a micro-batch and accumulation steps."""
    models = [model for model, *_ in batches]
    counts = [1] * len(batches)
    columns = np.array(
        [(shape.nodes, shape.replicas, atomic, accum) for _, shape, atomic, accum in batches]
    ).T
    nodes, replicas, atomic, accum = columns[:, :, None]
    value = goodput(
        stack([model.params for model in models], counts),
        stack([model.stats or GradientStats(1.0, 0.0) for model in models], counts),
        stack([model.limits for model in models], counts).base,
        nodes,
        replicas,
        atomic,
        accum,
    )
    factors = [_factor(model, shape.nodes, shape.replicas) for model, shape, *_ in batches]
    return [
        raw_goodput / factor
        for raw_goodput, factor in zip(value[:, 0].tolist(), factors, strict=True)
    ]


def _factor(model: Model, nodes: int, replicas: int) -> float:
    """The factor by which the correction multiplies a predicted time."""
    return float(model.correction.factor(np.array([nodes]), np.array([replicas]))[0])


@dataclass(frozen=True, slots=True)
class Now:
    """How a running job does: measured throughput times modelled efficiency."""

    throughput: float
    efficiency: float
    goodput: float


def now_of(job: Job, *, measured: bool = True) -> Now | None:
    """None if the job does not run or has reported nothing yet. If not `measured`, the throughput
    is modelled too, for comparison with other shapes and batches."""
    profile, placement = job.profile, job.placement
    if placement is None or profile.atomic_batch <= 0:
        return None
    model = model_of(profile, placement.gpu_type)
    if model is None:
        return None
    total = placement.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    nodes, replicas = len(placement.parts), placement.replicas
    speed = profile.samples_per_second if measured else 0.0
    if not speed:
        modelled = float(
            throughput(model.params, nodes, replicas, profile.atomic_batch, profile.accum_steps)
        )
        speed = modelled / _factor(model, nodes, replicas)
    effective = min(float(efficiency(model.stats, model.limits.base, total)), 1.0)
    return Now(speed, effective, speed * effective)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    gpus: int
    goodput: float
    total_batch: int
    speedup: float  # relative to the first point


def curve(job: Job, shapes: Sequence[Shape]) -> tuple[CurvePoint, ...]:
    """The goodput curve over `shapes`, fewest GPUs first. Empty while nothing is known."""
    goodput_table = table(job, shapes)
    if goodput_table is None:
        return ()
    choices = map(goodput_table.choice, range(len(shapes)))
    usable = [
        (shape, choice) for shape, choice in zip(shapes, choices, strict=True) if choice.goodput > 0
    ]
    if not usable:
        return ()
    base = usable[0][1].goodput
    return tuple(
        CurvePoint(shape.replicas, choice.goodput, choice.total_batch, choice.goodput / base)
        for shape, choice in usable
    )


def remaining_seconds(job: Job, now: float) -> float | None:
    """Run time left at the present speed, from the part of the declared length that is done. None
    if not known."""
    declared, progress = job.profile.declared, job.profile.progress
    if progress is None or progress.fraction <= 0 or progress.epochs <= 0:
        return None
    left, speed = job.profile.length_left, now_of(job)
    if left is not None and declared is not None and speed is not None and speed.throughput > 0:
        return left / (speed.goodput if declared.statistical else speed.throughput)
    spent = job.run_seconds + (now - job.started_at if job.started_at is not None else 0.0)
    return spent * (1.0 - progress.fraction) / progress.fraction if spent > 0 else None
