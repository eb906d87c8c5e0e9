"""Which batches a job may have: the limits that it declared, and the candidates within them for each number of replicas.

Symbols as in `goodput`: K replicas, m atomic batch, s accumulation steps, M0 the base batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpq.core.profile import Declared

Array = NDArray[np.float64]

CANDIDATES = 50  # total batches tried per shape, geometrically spaced
_MOST_MICRO_BATCHES = 64  # that a fixed batch is cut into
_SLACK = 1e-8  # of the rounding up, so that 32.000000001 stays 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may be: the total within base (M0) .. maximum, the atomic one within its own bounds."""

    base: int
    maximum: int
    min_atomic: int
    max_atomic: int
    accumulation: bool = True
    accumulate_alone: bool = (
        False  # one replica exceeds the base only with s >= 1 (Pollux, which has no noise scale else)
    )


def limits_of(declared: Declared, gpu_type: str = "") -> BatchLimits | None:
    """The limits that a script declared; a job that is not adaptive keeps its batch. None: no batch was declared."""
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
    return BatchLimits(base, maximum, smallest, largest, declared.accumulation, declared.accumulate_alone)


def candidate_batches(limits: BatchLimits, replicas: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.bool_]]:
    """(m, s, feasible), each shapes x candidates: total batches M0..max, cut into the fewest micro-batches that fit.

    One replica need not accumulate to exceed M0, as in Pollux, which has no unbiased noise scale from a single gradient
    (`accumulate_alone`): the training library splits a batch now and then instead. Rounding up may exceed the maximum;
    then the atomic batch is rounded down, and where that falls below M0 the candidate is infeasible.
    """
    k = replicas[:, None].astype(np.float64)
    if limits.maximum <= limits.base:
        atomic, accum = _fixed_batches(limits, k)
    else:
        low = np.maximum(float(limits.base), limits.min_atomic * k)
        ratio = np.maximum(limits.maximum / low, 1.0)
        local = low * ratio ** np.linspace(0.0, 1.0, CANDIDATES) / k
        accum = np.zeros_like(local)
        if limits.accumulation:
            accum = np.maximum(np.ceil(local / limits.max_atomic - _SLACK) - 1.0, 0.0)
        if limits.accumulate_alone:
            accum = np.where((k == 1) & (local > limits.base + _SLACK), np.maximum(accum, 1.0), accum)
        atomic = np.ceil(local / (accum + 1.0) - _SLACK)
        atomic = np.minimum(atomic, np.floor(limits.maximum / (k * (accum + 1.0)) + _SLACK))
    total = k * atomic * (accum + 1.0)
    inside = (atomic >= limits.min_atomic) & (atomic <= limits.max_atomic)
    feasible = inside & (total >= limits.base) & (total <= limits.maximum)
    return np.maximum(atomic, 1.0), accum, feasible


def _fixed_batches(limits: BatchLimits, k: Array) -> tuple[Array, Array]:
    """Every way to cut a batch that must be exactly M0; what does not divide comes out below M0, so infeasible."""
    ways = max(1, -(-limits.base // max(limits.min_atomic, 1))) if limits.accumulation else 1
    micro_batches = np.arange(1.0, min(ways, _MOST_MICRO_BATCHES) + 1.0)
    atomic = np.floor(limits.base / (k * micro_batches) + _SLACK)
    return atomic, np.broadcast_to(micro_batches - 1.0, atomic.shape)
