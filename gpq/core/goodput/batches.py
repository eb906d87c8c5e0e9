"""The batch with the largest goodput for a shape. It tries every candidate, for many shapes of many
jobs at once.

Symbols as in `goodput`: K replicas, m micro-batch, s accumulation steps, M0 the base batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.goodput import (
    GradientStats,
    ThroughputParams,
    efficiency,
    overlap,
    stack,
    sync_time,
)
from gpq.core.model.profile import Declared

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

CANDIDATES = 50  # batch sizes tried per shape, geometrically spaced
_MOST_MICRO_BATCHES = 64  # parts of a fixed batch
_SLACK = 1e-8  # of the rounding up, so that 32.000000001 stays 32
# shapes computed at a time, so that their candidates stay in the processor's cache
_TOGETHER = 512


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may be: its size between base (M0) and maximum, its micro-batch within its own
    bounds."""

    base: int
    maximum: int
    min_atomic: int
    max_atomic: int
    accumulation: bool = True
    accumulate_alone: bool = (
        # one replica exceeds the base only with s >= 1 (in Pollux it otherwise has no noise scale)
        False
    )


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The best batch of one shape. Goodput 0 (and batch 0) means that no batch within the limits
    fits the shape."""

    atomic_batch: int
    accum_steps: int
    total_batch: int
    goodput: float  # examples per second at the base batch size
    throughput: float  # examples per second
    efficiency: float


@dataclass(frozen=True, slots=True)
class GoodputTable:
    """`best_batch` of many shapes at once: arrays over shapes, in the order asked."""

    nodes: NDArray[np.int64]
    replicas: NDArray[np.int64]
    atomic_batch: NDArray[np.int64]
    accum_steps: NDArray[np.int64]
    goodput: Array
    throughput: Array
    efficiency: Array

    def choice(self, index: int) -> BatchChoice:
        """One row as the answer of `best_batch`."""
        atomic, accum = int(self.atomic_batch[index]), int(self.accum_steps[index])
        return BatchChoice(
            atomic,
            accum,
            int(self.replicas[index]) * atomic * (accum + 1),
            float(self.goodput[index]),
            float(self.throughput[index]),
            float(self.efficiency[index]),
        )


def columns_of(table: GoodputTable) -> tuple[NDArray[Any], ...]:
    """The arrays of a table, in the order of its fields."""
    return (
        table.nodes,
        table.replicas,
        table.atomic_batch,
        table.accum_steps,
        table.goodput,
        table.throughput,
        table.efficiency,
    )


@dataclass(frozen=True, slots=True)
class Question:
    """Shapes (nodes[i], replicas[i]) of one job whose best batches are asked for. `factor`
    multiplies the predicted times of each shape (`correction`)."""

    params: ThroughputParams
    stats: GradientStats | None
    limits: BatchLimits
    nodes: Ints
    replicas: Ints
    factor: Array


def limits_of(declared: Declared, gpu_type: str = "") -> BatchLimits | None:
    """The limits that a script declared. A job that is not adaptive keeps its batch. None if the
    script declared no batch."""
    base = declared.batch_size
    if base <= 0:
        return None
    maximum = max(base, declared.max_batch_size) if declared.adaptive else base
    least, most = declared.min_atomic_batch, declared.max_atomic_batch
    for name, low, high in declared.atomic_by_type:
        if name == gpu_type:
            least, most = low, high
    largest = most if most > 0 else maximum
    smallest = min(max(least, 1), largest)
    return BatchLimits(
        base, maximum, smallest, largest, declared.accumulation, declared.accumulate_alone
    )


def split_base(limits: BatchLimits, replicas: int) -> tuple[int, int]:
    """(micro-batch, accumulation steps) of the base batch on this many replicas, in as few
    micro-batches as possible."""
    local = -(-limits.base // replicas)
    micro = -(-local // limits.max_atomic) if limits.accumulation else 1
    return -(-local // micro), micro - 1


def goodput_table(
    params: ThroughputParams,
    stats: GradientStats | None,
    limits: BatchLimits,
    nodes: Sequence[int] | Ints,
    replicas: Sequence[int] | Ints,
) -> GoodputTable:
    """`best_batch` of every (nodes[i], replicas[i])."""
    n, k = np.asarray(nodes, dtype=np.int64), np.asarray(replicas, dtype=np.int64)
    return goodput_tables([Question(params, stats, limits, n, k, np.ones(len(k)))])[0]


def goodput_tables(questions: Sequence[Question]) -> list[GoodputTable]:
    """The table of each question. If several batches have equal goodput, the smallest one. Other
    questions do not change an answer."""
    numbers: dict[bool, list[int]] = {True: [], False: []}
    for number, question in enumerate(questions):
        numbers[_is_fixed(question.limits)].append(number)
    tables: dict[int, GoodputTable] = {}
    for chunk in (*_chunks(questions, numbers[True]), *_chunks(questions, numbers[False])):
        answers = _tables([questions[number] for number in chunk])
        tables.update(zip(chunk, answers, strict=True))
    return [tables[number] for number in range(len(questions))]


def _is_fixed(limits: BatchLimits) -> bool:
    return limits.maximum <= limits.base


def _chunks(questions: Sequence[Question], numbers: Sequence[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    shapes = 0
    for number in numbers:
        if chunk and shapes + len(questions[number].replicas) > _TOGETHER:
            yield chunk
            chunk, shapes = [], 0
        chunk.append(number)
        shapes += len(questions[number].replicas)
    if chunk:
        yield chunk


def _tables(questions: Sequence[Question]) -> list[GoodputTable]:
    """Of questions that are all fixed, or all not fixed."""
    counts = [len(question.replicas) for question in questions]
    n = np.concatenate([question.nodes for question in questions])
    k = np.concatenate([question.replicas for question in questions])
    factor = np.concatenate([question.factor for question in questions])
    params = stack([question.params for question in questions], counts)
    stats = stack([question.stats or GradientStats(1.0, 0.0) for question in questions], counts)
    limits = stack([question.limits for question in questions], counts)
    atomic, accum, feasible = _candidates(limits, k, fixed=_is_fixed(questions[0].limits))
    rows = np.arange(len(k))
    total = k[:, None] * atomic * (accum + 1.0)
    compute = params.alpha_c + params.beta_c * atomic
    step = overlap(params.gamma, compute, sync_time(params, n[:, None], k[:, None]))
    speed = total / (accum * compute + step) / factor[:, None]
    value = np.where(feasible, speed * efficiency(stats, limits.base, total), 0.0)
    best = np.argmax(value, axis=1)
    fits = value[rows, best] > 0
    total_best = total[rows, best][:, None]
    columns: tuple[NDArray[Any], ...] = (
        n,
        k,
        np.where(fits, atomic[rows, best], 0.0).astype(np.int64),
        np.where(fits, accum[rows, best], 0.0).astype(np.int64),
        np.where(fits, value[rows, best], 0.0),
        np.where(fits, speed[rows, best], 0.0),
        np.where(fits, efficiency(stats, limits.base, total_best)[:, 0], 0.0),
    )
    ends = np.cumsum(counts).tolist()
    return [
        GoodputTable(*(column[end - count : end] for column in columns))
        for count, end in zip(counts, ends, strict=True)
    ]


def candidate_batches(
    limits: BatchLimits, replicas: Ints
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """(m, s, feasible), each of size shapes x candidates: batch sizes M0..max, split into the
    fewest micro-batches that fit.

    In Pollux one replica must accumulate to exceed M0, because a single gradient gives it no
    unbiased noise scale (`accumulate_alone`). Here the training library splits a batch now and then
    instead. Rounding up may exceed the maximum. The micro-batch is then rounded down, and if the
    result is below M0, the candidate is infeasible.
    """
    columns = stack([limits], [len(replicas)])
    return _candidates(columns, replicas, fixed=_is_fixed(limits))


def _candidates(
    limits: BatchLimits, replicas: Ints, *, fixed: bool
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """The same with a column of limits (shapes x 1)."""
    k = replicas[:, None].astype(np.float64)
    if fixed:
        atomic, accum = _fixed_batches(limits, k)
    else:
        low = np.maximum(limits.base, limits.min_atomic * k)
        ratio = np.maximum(limits.maximum / low, 1.0)
        local = low * ratio ** np.linspace(0.0, 1.0, CANDIDATES) / k
        accum = np.maximum(np.ceil(local / limits.max_atomic - _SLACK) - 1.0, 0.0)
        accum = np.where(limits.accumulation, accum, 0.0)
        split = (
            (np.asarray(limits.accumulate_alone) > 0) & (k == 1) & (local > limits.base + _SLACK)
        )
        accum = np.where(
            split & (np.asarray(limits.accumulation) > 0), np.maximum(accum, 1.0), accum
        )
        atomic = np.ceil(local / (accum + 1.0) - _SLACK)
        atomic = np.minimum(atomic, np.floor(limits.maximum / (k * (accum + 1.0)) + _SLACK))
    total = k * atomic * (accum + 1.0)
    inside = (atomic >= limits.min_atomic) & (atomic <= limits.max_atomic)
    feasible = inside & (total >= limits.base) & (total <= limits.maximum)
    if not fixed:
        feasible &= ~split | (accum > 0)
    return np.maximum(atomic, 1.0), accum, feasible


def _fixed_batches(limits: BatchLimits, k: Array) -> tuple[Array, Array]:
    """Every way to split a batch that must be exactly M0. A batch that does not divide comes out
    below M0, so it is infeasible."""
    ways = np.where(
        limits.accumulation, np.ceil(limits.base / np.maximum(limits.min_atomic, 1.0)), 1.0
    )
    ways = np.minimum(np.maximum(ways, 1.0), _MOST_MICRO_BATCHES)
    micro_batches = np.arange(1.0, float(ways.max(initial=1.0)) + 1.0)
    atomic = np.where(
        micro_batches <= ways, np.floor(limits.base / (k * micro_batches) + _SLACK), 0.0
    )
    return atomic, np.broadcast_to(micro_batches - 1.0, atomic.shape)
