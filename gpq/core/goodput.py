"""Throughput model x statistical efficiency = goodput, and the best of the `batches` for a shape. Fits nothing, knows no job.

Symbols (Pollux, OSDI'21, section 3): K replicas on N nodes, m atomic batch, s accumulation steps, M = K m (s + 1) total
batch, M0 the user's batch, phi = var / sqr the gradient noise scale. Times in seconds, batches in examples. Every
function takes scalars or arrays that broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpq.core.batches import BatchLimits, candidate_batches
from gpq.core.profile import Noise

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ThroughputParams:
    """The step-time model of one program on one GPU type. All >= 0, gamma >= 1.

    T_grad(m)    = alpha_c + beta_c m
    T_sync(N, K) = 0                                                                            K = 1
                 = alpha_r + beta_r log2(K / 2)                                                 N = 1, K > 1
                 = alpha_n + beta_n log2(K / 2) + delta_n (K / N - 1) / (N - 1)                 N > 1
    T_step       = (T_grad^gamma + T_sync^gamma)^(1 / gamma)

    Pollux has beta (K - 2) and no delta. Measured times grow slower than K, and full nodes that are few are dearer than
    the same replicas spread over more nodes, which delta_n says: K/N replicas of a node share N - 1 peers.
    """

    alpha_c: float  # s: T_grad at m -> 0 (kernel launches, data, optimiser)
    beta_c: float  # s per example: slope of T_grad in m
    alpha_n: float  # s: T_sync of two replicas on two nodes
    beta_n: float  # s per doubling of K across nodes
    alpha_r: float  # s: T_sync of two replicas in one node
    beta_r: float  # s per doubling of K within a node
    gamma: float  # overlap of computing and synchronising: 1 = none (sum), infinity = full (maximum)
    delta_n: float = 0.0  # s per replica of a node beyond the first, per peer node


@dataclass(frozen=True, slots=True)
class GradientStats:
    """sqr = |E g|^2 and var = tr(Cov g) of ONE example; Pollux's var at the base batch is var / M0."""

    sqr: float
    var: float

    @property
    def noise_scale(self) -> float:
        """phi = var / sqr, in examples; infinite where the gradient drowns in noise."""
        return self.var / self.sqr if self.sqr > 0 else math.inf


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The best batch of one shape. `goodput` 0 (and batch 0) means that no batch within the limits fits the shape."""

    atomic_batch: int
    accum_steps: int
    total_batch: int
    goodput: float  # examples of the base batch's worth, per second
    throughput: float  # examples per second
    efficiency: float


@dataclass(frozen=True, slots=True)
class GoodputTable:
    """`best_batch` of many shapes at once: arrays over shapes, same order as asked."""

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


def stats_of(noise: Noise | None) -> GradientStats | None:
    """The statistics as far as they are known: None before the first usable estimate."""
    if noise is None or noise.samples <= 0 or noise.var < 0 or (noise.var <= 0 and noise.sqr <= 0):
        return None
    return GradientStats(max(noise.sqr, 0.0), noise.var)


def grad_time(params: ThroughputParams, atomic_batch: ArrayLike) -> Any:
    """T_grad: one forward and backward, seconds; also the time of an accumulation step."""
    return params.alpha_c + params.beta_c * np.asarray(atomic_batch, dtype=np.float64)


def sync_time(params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike) -> Any:
    """T_sync: averaging the gradients, seconds."""
    n, k = np.asarray(nodes, dtype=np.float64), np.asarray(replicas, dtype=np.float64)
    doublings = np.log2(np.maximum(k, 2.0)) - 1.0
    within = params.alpha_r + params.beta_r * doublings
    across = params.alpha_n + params.beta_n * doublings + params.delta_n * crowding(n, k)
    return np.where(k <= 1, 0.0, np.where(n <= 1, within, across))


def crowding(nodes: Array, replicas: Array) -> Any:
    """(K / N - 1) / (N - 1): replicas of a node beyond the first, per peer node; 0 within one node."""
    return np.where(nodes > 1, np.maximum(replicas / nodes - 1.0, 0.0) / np.maximum(nodes - 1.0, 1.0), 0.0)


def overlapped(gamma: float, first: ArrayLike, second: ArrayLike) -> Any:
    """The gamma-norm of two times, scaled by the larger so that no power overflows."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    large, small = np.maximum(a, b), np.minimum(a, b)
    ratio = small / np.maximum(large, np.finfo(np.float64).tiny)
    return large * (1.0 + ratio**gamma) ** (1.0 / gamma)


def step_time(params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike, atomic_batch: ArrayLike) -> Any:
    """T_step: the micro-batch that synchronises, seconds."""
    return overlapped(params.gamma, grad_time(params, atomic_batch), sync_time(params, nodes, replicas))


def iteration_time(
    params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike, atomic_batch: ArrayLike, accum_steps: ArrayLike
) -> Any:
    """T_iter = s T_grad + T_step, seconds per optimiser step."""
    accumulating = np.asarray(accum_steps, dtype=np.float64) * grad_time(params, atomic_batch)
    return accumulating + step_time(params, nodes, replicas, atomic_batch)


def throughput(
    params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike, atomic_batch: ArrayLike, accum_steps: ArrayLike
) -> Any:
    """Examples per second: M / T_iter."""
    total = np.asarray(replicas) * np.asarray(atomic_batch) * (np.asarray(accum_steps) + 1.0)
    return total / iteration_time(params, nodes, replicas, atomic_batch, accum_steps)


def efficiency(stats: GradientStats | None, base: float, total: ArrayLike) -> Any:
    """EFF(M) = (phi + M0) / (phi + M), in (0, 1] for M >= M0: progress per example relative to the base batch.

    Without statistics phi counts as 0: a larger batch is then worth no more than M0, and the batch stays there.
    """
    sqr, var = (stats.sqr, stats.var) if stats is not None else (1.0, 0.0)
    return (var + sqr * base) / (var + sqr * np.asarray(total, dtype=np.float64))


def gain(stats: GradientStats | None, base: float, total: ArrayLike) -> Any:
    """AdaScale's r = EFF(M) M / M0, in [1, M / M0]: base steps that one step at M is worth."""
    return efficiency(stats, base, total) * np.asarray(total, dtype=np.float64) / base


def goodput(
    params: ThroughputParams,
    stats: GradientStats | None,
    base: float,
    nodes: ArrayLike,
    replicas: ArrayLike,
    atomic_batch: ArrayLike,
    accum_steps: ArrayLike,
) -> Any:
    """Throughput x efficiency, in examples of the base batch's worth per second."""
    total = np.asarray(replicas) * np.asarray(atomic_batch) * (np.asarray(accum_steps) + 1.0)
    return throughput(params, nodes, replicas, atomic_batch, accum_steps) * efficiency(stats, base, total)


def best_batch(
    params: ThroughputParams, stats: GradientStats | None, limits: BatchLimits, nodes: int, replicas: int
) -> BatchChoice:
    """The batch of largest goodput on `replicas` GPUs over `nodes` nodes (Pollux section 4.1)."""
    return goodput_table(params, stats, limits, [nodes], [replicas]).choice(0)


def goodput_table(
    params: ThroughputParams,
    stats: GradientStats | None,
    limits: BatchLimits,
    nodes: Sequence[int] | NDArray[np.int64],
    replicas: Sequence[int] | NDArray[np.int64],
    factor: Array | None = None,
) -> GoodputTable:
    """`best_batch` of every (nodes[i], replicas[i]), vectorised. Of equal goodput: the smallest batch.

    `factor`: what predicted times are multiplied by, for each shape (`correction`).
    """
    n, k = np.asarray(nodes, dtype=np.int64), np.asarray(replicas, dtype=np.int64)
    atomic, accum, feasible = candidate_batches(limits, k)
    rows = np.arange(len(k))
    kk = k[:, None].astype(np.float64)
    total = kk * atomic * (accum + 1.0)
    compute = params.alpha_c + params.beta_c * atomic
    speed = total / (accum * compute + overlapped(params.gamma, compute, sync_time(params, n, k)[:, None]))
    if factor is not None:
        speed = speed / factor[:, None]
    value = np.where(feasible, speed * efficiency(stats, limits.base, total), 0.0)
    best = np.argmax(value, axis=1)
    found = value[rows, best] > 0
    speed_best = speed[rows, best]
    effective = efficiency(stats, limits.base, total[rows, best])
    return GoodputTable(
        n,
        k,
        np.where(found, atomic[rows, best], 0.0).astype(np.int64),
        np.where(found, accum[rows, best], 0.0).astype(np.int64),
        np.where(found, value[rows, best], 0.0),
        np.where(found, speed_best, 0.0),
        np.where(found, effective, 0.0),
    )
