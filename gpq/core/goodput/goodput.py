"""Throughput model x statistical efficiency = goodput. Fits nothing, searches nothing, knows no
job.

Symbols (Pollux, OSDI'21, section 3): K replicas on N servers, m micro-batch, s accumulation steps.
M = K m (s + 1) is the batch size, M0 the user's batch size. phi = var / sqr is the gradient noise
scale. Times in seconds, batches in examples. Every function takes scalars or arrays that broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpq.core.model.profile import Noise

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ThroughputParams:
    """The step-time model of one program on one GPU type. All >= 0, gamma >= 1.

    T_grad(m)    = alpha_c + beta_c m
    T_sync(N, K) = 0                                                            K = 1
                 = alpha_r + beta_r log2(K / 2)                                 N = 1, K > 1
                 = alpha_n + beta_n log2(K / 2) + delta_n (K / N - 1) / (N - 1)  N > 1
    T_step       = (T_grad^gamma + T_sync^gamma)^(1 / gamma)

    Pollux has beta (K - 2) and no delta. Measured times grow slower than K. A few full servers cost
    more than the same replicas spread over more servers, and delta_n says so: K/N replicas of a
    server share N - 1 peers.
    """

    alpha_c: float  # s: T_grad at m -> 0 (kernel launches, data, optimizer)
    beta_c: float  # s per example: slope of T_grad in m
    alpha_n: float  # s: T_sync of two replicas on two servers
    beta_n: float  # s per doubling of K across servers
    alpha_r: float  # s: T_sync of two replicas on one server
    beta_r: float  # s per doubling of K within a server
    # overlap of computing and synchronising: 1 = none (sum), infinity = full (maximum)
    gamma: float
    delta_n: float = 0.0  # s per replica of a server beyond the first, per peer server


@dataclass(frozen=True, slots=True)
class GradientStats:
    """sqr = |E g|^2 and var = tr(Cov g) of ONE example. Pollux's var at the base batch is var /
    M0."""

    sqr: float
    var: float

    @property
    def noise_scale(self) -> float:
        """phi = var / sqr, in examples. Infinite if the noise hides the gradient."""
        return self.var / self.sqr if self.sqr > 0 else math.inf


def stack(parts: Sequence[T], counts: Sequence[int]) -> T:
    """The fields of several (parameters, statistics, limits), each repeated by its count, as
    columns (n x 1) of one. Every function here takes arrays that broadcast."""
    kind: Any = type(parts[0])
    values = _getter(kind)
    table = np.repeat(np.array([values(part) for part in parts], dtype=np.float64), counts, axis=0)
    stack: T = kind(*(column[:, None] for column in table.T))
    return stack


@cache
def _getter(kind: type) -> attrgetter[Any]:
    return attrgetter(*(field.name for field in fields(kind)))


def stats_of(noise: Noise | None) -> GradientStats | None:
    """The statistics if they are known. None before the first usable estimate."""
    if noise is None or noise.samples <= 0 or noise.var < 0 or (noise.var <= 0 and noise.sqr <= 0):
        return None
    return GradientStats(max(noise.sqr, 0.0), noise.var)


def grad_time(params: ThroughputParams, atomic_batch: ArrayLike) -> Any:
    """T_grad: one forward and backward pass, in seconds. Also the time of an accumulation step."""
    return params.alpha_c + params.beta_c * np.asarray(atomic_batch, dtype=np.float64)


def sync_time(params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike) -> Any:
    """T_sync: averaging the gradients, in seconds."""
    n, k = np.asarray(nodes, dtype=np.float64), np.asarray(replicas, dtype=np.float64)
    doublings = np.log2(np.maximum(k, 2.0)) - 1.0
    within = params.alpha_r + params.beta_r * doublings
    across = params.alpha_n + params.beta_n * doublings + params.delta_n * crowding(n, k)
    return np.where(k <= 1, 0.0, np.where(n <= 1, within, across))


def crowding(nodes: Array, replicas: Array) -> Any:
    """(K / N - 1) / (N - 1): replicas of a server beyond the first, per peer server. 0 within one
    server."""
    return np.where(
        nodes > 1, np.maximum(replicas / nodes - 1.0, 0.0) / np.maximum(nodes - 1.0, 1.0), 0.0
    )


def overlap(gamma: ArrayLike, first: ArrayLike, second: ArrayLike) -> Any:
    """The gamma-norm of two times, scaled by the larger one so that no power overflows."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    large, small = np.maximum(a, b), np.minimum(a, b)
    ratio = small / np.maximum(large, np.finfo(np.float64).tiny)
    power = np.asarray(gamma, dtype=np.float64)
    return large * (1.0 + ratio**power) ** (1.0 / power)


def step_time(
    params: ThroughputParams, nodes: ArrayLike, replicas: ArrayLike, atomic_batch: ArrayLike
) -> Any:
    """T_step: the micro-batch that synchronises, in seconds."""
    return overlap(
        params.gamma, grad_time(params, atomic_batch), sync_time(params, nodes, replicas)
    )


def iteration_time(
    params: ThroughputParams,
    nodes: ArrayLike,
    replicas: ArrayLike,
    atomic_batch: ArrayLike,
    accum_steps: ArrayLike,
) -> Any:
    """T_iter = s T_grad + T_step, seconds per optimizer step."""
    accumulating = np.asarray(accum_steps, dtype=np.float64) * grad_time(params, atomic_batch)
    return accumulating + step_time(params, nodes, replicas, atomic_batch)


def throughput(
    params: ThroughputParams,
    nodes: ArrayLike,
    replicas: ArrayLike,
    atomic_batch: ArrayLike,
    accum_steps: ArrayLike,
) -> Any:
    """Examples per second: M / T_iter."""
    total = np.asarray(replicas) * np.asarray(atomic_batch) * (np.asarray(accum_steps) + 1.0)
    return total / iteration_time(params, nodes, replicas, atomic_batch, accum_steps)


def efficiency(stats: GradientStats | None, base: float, total: ArrayLike) -> Any:
    """EFF(M) = (phi + M0) / (phi + M), in (0, 1] for M >= M0: progress per example relative to the
    base batch size.

    Without statistics phi counts as 0. A larger batch is then worth no more than M0, and the batch
    size stays there.
    """
    sqr, var = (stats.sqr, stats.var) if stats is not None else (1.0, 0.0)
    return (var + sqr * base) / (var + sqr * np.asarray(total, dtype=np.float64))


def gain(stats: GradientStats | None, base: float, total: ArrayLike) -> Any:
    """AdaScale's r = EFF(M) M / M0, in [1, M / M0]: the base steps that one step at M is worth."""
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
    """Throughput x efficiency, in examples per second at the base batch size."""
    total = np.asarray(replicas) * np.asarray(atomic_batch) * (np.asarray(accum_steps) + 1.0)
    return throughput(params, nodes, replicas, atomic_batch, accum_steps) * efficiency(
        stats, base, total
    )
