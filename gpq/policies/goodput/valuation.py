"""What every shape is worth to every job: goodput relative to that on the fair share, less the cost
of a restart, bent and weighted.

    V_j(n) = w_j (eps + f_j(n) g_j(n) / g_j(fair share))^p

f is what a restart leaves of the value of another shape. By cost-to-go, goodput is relative to that
at the best shape, and p is 1.

Jobs with the same options are valued together, as rows of one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId, Seconds
from gpq.policies.goodput.candidates import (
    Array,
    Group,
    Ints,
    Mask,
    Menu,
    Options,
    asks_for,
    menu_of,
    speeds_of,
)

# a move must promise this much, even if restarts are quick, because estimates are no better
LEAST_GAIN = 0.1
TINY = 1e-12  # seconds, to avoid a division by zero
FOR_EVER = 1e12  # seconds, to avoid a division of infinity
LEAST_FACTOR = 0.7  # of a restart, even a long one

EPSILON = 1e-3  # value of no GPUs at all, in fair shares
FIRST_START = 4  # GPUs, at most one node, of a script that was never profiled
GROWTH = 4  # times the profiled replicas. Beyond that the model is not trusted yet
# the same with several types, because each profiled type says something about the others
GROWTH_MIXED = 8
MENUS_KEPT = 1024  # of the same options


@dataclass(frozen=True, slots=True)
class Valuation:
    """What each shape on its menu is worth to a job: first the present one, then nothing."""

    job: JobId
    menu: Menu
    values: Array

    @property
    def shapes(self) -> tuple[Shape | None, ...]:
        return self.menu.shapes


def value(
    group: Group,
    config: Config,
    now: Seconds,
    shares: Mapping[JobId, float],
    weights: Mapping[JobId, float],
    stakes: Stakes,
    capacities: Mapping[str, int],
    by_cost: bool = False,
) -> list[Valuation]:
    """What each shape is worth to each job of the group. `by_cost`: by cost-to-go."""
    speeds = speeds_of(group)
    options = group.options
    if by_cost:
        power, reference = 1.0, speeds.max(axis=1)
    else:
        power, share = config.fairness_power, np.array([shares[row.job.id] for row in group.rows])
        reference = fair_speeds(speeds, options.shapes, share, capacities)
    column = np.array([options.index.get(row.current, -1) for row in group.rows])
    is_current = column[:, None] == np.arange(len(options.shapes))[None, :]
    times, node = growth(len(capacities)), options.offer.node_size
    caps = [
        growth_cap(row.job, node, max_replicas, times)
        for row, max_replicas in zip(group.rows, group.max_replicas, strict=True)
    ]
    is_within_cap = options.replicas[None, :] <= np.array(caps)[:, None]
    allowed = (speeds > 0) & (is_current | is_within_cap)
    divisor = np.where(reference > 0, reference, 1.0)
    relative = np.where(reference[:, None] > 0, speeds / divisor[:, None], 0.0)
    relative = relative * restart_factors(group, config, now, is_current, stakes)
    weight = np.array([weights[row.job.id] for row in group.rows])
    bent = weight[:, None] * bend(relative + EPSILON, power)
    nothing = weight * float(bend(np.array([EPSILON]), power)[0])
    values = np.concatenate([bent, nothing[:, None]], axis=1)
    valuations = []
    for row, row_column, mask, row_values in zip(
        group.rows, column.tolist(), allowed, values, strict=True
    ):
        key = row_column, mask.tobytes()
        entry = options.menus.get(key)
        if entry is None:
            if len(options.menus) >= MENUS_KEPT:
                options.menus.clear()
            entry = options.menus[key] = _menu(options, row_column, mask)
        order, menu = entry
        valuations.append(Valuation(row.job.id, menu, row_values.take(order)))
    return valuations


def _menu(options: Options, current: int, allowed: Mask) -> tuple[Ints, Menu]:
    """Columns (nothing: the one after the last) and shapes: the present one first, then nothing,
    the tidy ones, the rest."""
    alternatives = allowed.copy()
    first = [len(options.shapes)]
    if current >= 0 and allowed[current]:
        alternatives[current] = False
        first = [current, *first]
    tidy = [*first, *np.flatnonzero(alternatives & options.tidy).tolist()]
    order = [*tidy, *np.flatnonzero(alternatives & ~options.tidy).tolist()]
    shapes = (*options.shapes, None)
    return np.array(order, dtype=np.int64), menu_of(tuple(shapes[i] for i in order), len(tidy))


def bend(utility: Array, p: float) -> Array:
    """u^p for p > 0, log u for p = 0, -u^p for p < 0. It always grows, and bends more for smaller
    p."""
    bent: Array = np.log(utility) if p == 0 else np.sign(p) * utility**p
    return bent


def fair_speeds(
    speeds: Array, options: tuple[Shape, ...], share: Array, capacities: Mapping[str, int]
) -> Array:
    """Goodput on the fair share, by row. With several types, the job has the same share of each,
    and this is the mean over their GPUs."""
    total = sum(capacities.values())
    weighted_sums = np.zeros(len(speeds))
    weight = 0.0
    for name, count in capacities.items():
        columns = [i for i, shape in enumerate(options) if shape.gpu_type == name]
        if not columns or total == 0:
            continue
        part = count / total
        counts = np.array([float(options[i].replicas) for i in columns])
        weighted_sums += part * _interpolate(speeds[:, columns], counts, share * part)
        weight += part
    if weight <= 0:
        return weighted_sums
    return weighted_sums / weight


def _interpolate(speeds: Array, counts: Array, share: Array) -> Array:
    """`fairness.speed_at` for every row. It is linear between the shapes around the share and never
    falls. Below the first shape that a job can have, it counts as if the job had that one for part
    of the time."""
    best = np.maximum.accumulate(speeds, axis=1)
    rows = np.arange(len(speeds))
    first = np.argmax(best > 0, axis=1)
    has_speed = best[rows, first] > 0
    above = np.searchsorted(counts, share)
    above = np.maximum(above, first)
    is_inside = above < len(counts)
    high = np.minimum(above, len(counts) - 1)
    low = high - 1
    has_low = is_inside & (low >= first) & (high > 0)
    low_count = np.where(has_low, counts[np.maximum(low, 0)], 0.0)
    low_speed = np.where(has_low, best[rows, np.maximum(low, 0)], 0.0)
    part = (share - low_count) / np.maximum(counts[high] - low_count, 1e-12)
    between = low_speed + part * (best[rows, high] - low_speed)
    return np.where(has_speed, np.where(is_inside, between, best[rows, -1]), 0.0)


def growth(types: int) -> int:
    """How many times the profiled replicas a job may get, by the number of GPU types."""
    return GROWTH_MIXED if types > 1 else GROWTH


def growth_cap(job: Job, node_size: int, max_replicas: int, times: int = GROWTH) -> int:
    """The most replicas that it may get now."""
    return asks_for(job) or max(
        job.spec.min_gpus, min(FIRST_START, node_size), times * max_replicas
    )


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a move has to earn, and what it costs: rows x options of a group."""

    times: Array  # seconds to the end at each shape, infinite if unknown
    bringing: Array | None = None  # extra seconds of a restart that must first copy files


def restart_factors(
    group: Group,
    config: Config,
    now: Seconds,
    is_current: Mask,
    stakes: Stakes,
) -> Array:
    """f(n) = (H - R) / H if a shape costs a restart, at most 1 / (1 + LEAST_GAIN). Otherwise 1. R
    is the restart time, with the time to copy files to where the shape would put the job.

    The horizon H is how long a move may take to pay off. It is longer for jobs that restart slowly:
    f is at least LEAST_FACTOR, or they would never move. But no job is expected to last much longer
    than it has lasted (Lindy's law). A job also does not leave a shape just after it paid a restart
    for it: f <= (t + R) / (t + 2 R) after t seconds in it. A stopped job pays when it resumes, so
    that two jobs do not take turns in every round. A job that would end in `times` seconds at a
    shape has only these to make up for the restart.
    """
    horizon = config.hysteresis_seconds
    restart = np.array([config.restart_cost(row.job) for row in group.rows])[:, None]
    if stakes.bringing is not None:
        restart = restart + stakes.bringing
    factor = np.ones(restart.shape)
    if horizon > 0:
        factor = np.maximum(1.0 - restart / horizon, LEAST_FACTOR)
    lifetime = (
        np.array([max(now - row.job.submitted_at, 0.0) for row in group.rows])[:, None] + horizon
    )
    factor = np.minimum(
        factor, np.where(restart > 0, lifetime / np.maximum(lifetime + restart, TINY), 1.0)
    )
    # for how long it has had its present shape, forever if it has none
    launches = [row.job.launched_at for row in group.rows]
    tenure = np.array(
        [FOR_EVER if launch is None else max(now - launch, 0.0) for launch in launches]
    )[:, None]
    factor = np.where(
        restart > 0,
        np.minimum(factor, (tenure + restart) / np.maximum(tenure + 2.0 * restart, TINY)),
        factor,
    )
    runs = np.array([row.current is not None for row in group.rows])
    ends = np.where(np.isfinite(stakes.times) & runs[:, None], stakes.times, 0.0)
    pays_off = np.where(ends > 0, ends / np.maximum(ends + restart, TINY), 1.0)
    factors = np.minimum(np.minimum(factor, pays_off), 1.0 / (1.0 + LEAST_GAIN))
    never_ran = np.array([row.job.attempt == 0 for row in group.rows])
    all_factors: Array = np.where(is_current | never_ran[:, None], 1.0, factors)
    return all_factors
