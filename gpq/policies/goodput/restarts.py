"""What a restart leaves of the value of another shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Config
from gpq.core.model.units import Seconds
from gpq.policies.goodput.groups import Array, Group, Mask

# a move must promise this much, even if restarts are quick, because estimates are no better
LEAST_GAIN = 0.1
TINY = 1e-12  # seconds, to avoid a division by zero
FOR_EVER = 1e12  # seconds, to avoid a division of infinity
LEAST_FACTOR = 0.7  # of a restart, even a long one


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
    tenure = np.array([_tenure(row.job, now) for row in group.rows])[:, None]
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


def _tenure(job: Job, now: Seconds) -> Seconds:
    """For how long it has had its present shape. Forever if it has none."""
    if job.placement is None or job.launched_at is None:
        return FOR_EVER
    return max(now - job.launched_at, 0.0)
