"""How a program's gradient noise scale changes during training: recorded thinly, averaged over
jobs, predicted ahead."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from math import exp, log, log2

from gpq.core.model.profile import Noise, NoisePoint

BINS = 2  # points kept for each doubling of progress
MEMORY = 3.0  # past jobs together weigh at most this many times the newest one
GRID = 16  # steps per doubling of a predicted scale: nearly equal scales need no new table

Curve = tuple[NoisePoint, ...]


def record(curve: Curve, base_steps: float, noise: Noise) -> Curve:
    """The curve with a usable `noise` measured at `base_steps`. The first of each bin is kept. If
    progress went back, nothing is removed, because the same steps have the same scale."""
    if curve and _bin(base_steps) <= _bin(curve[-1].base_steps):
        return curve
    return (*curve, NoisePoint(base_steps, noise.var / noise.sqr))


def merge(old: Curve, new: Curve) -> Curve:
    """Geometric means by bin. `new` weighs at least 1 / (1 + MEMORY)."""
    points_by_bin = {_bin(point.base_steps): point for point in old}
    for point in new:
        previous = points_by_bin.get(_bin(point.base_steps))
        if previous is not None:
            past = min(previous.jobs, MEMORY)
            total = past + point.jobs
            point = NoisePoint(
                (past * previous.base_steps + point.jobs * point.base_steps) / total,
                exp((past * log(previous.scale) + point.jobs * log(point.scale)) / total),
                previous.jobs + point.jobs,
            )
        points_by_bin[_bin(point.base_steps)] = point
    return tuple(points_by_bin[key] for key in sorted(points_by_bin))


def scale_at(curve: Curve, base_steps: float) -> float:
    """Noise scale in examples: interpolated in logarithms, flat beyond the ends. The curve must not
    be empty."""
    steps = [point.base_steps for point in curve]
    above = bisect_left(steps, base_steps)
    if above == 0 or above == len(curve):
        return curve[min(above, len(curve) - 1)].scale
    low, high = curve[above - 1], curve[above]
    part = (log1(base_steps) - log1(low.base_steps)) / max(
        log1(high.base_steps) - log1(low.base_steps), 1e-12
    )
    return exp(log(low.scale) + part * (log(high.scale) - log(low.scale)))


def ahead(curve: Curve, own: Noise | None, now: float, then: float) -> Noise | None:
    """The predicted noise scale at `then` for a job that is at `now` base steps. It is the job's
    own scale times the growth of the curve in between, and never less than its own. The same object
    for nearly the same answer."""
    if not curve or then <= now:
        return own
    scale, biased = scale_at(curve, then), False
    if own is not None:
        biased = own.biased
        if own.sqr <= 0 or own.var <= 0:
            return own
        growth = scale / scale_at(curve, now)
        if growth <= 1.0:
            return own
        scale = own.var / own.sqr * growth
    return _noise(round(log2(scale) * GRID), biased)


@lru_cache(maxsize=4096)
def _noise(step: int, biased: bool) -> Noise:
    return Noise(1.0, 2.0 ** (step / GRID), 1, biased)


def log1(steps: float) -> float:
    return log2(1.0 + max(steps, 0.0))


def _bin(steps: float) -> int:
    return int(log1(steps) * BINS)
