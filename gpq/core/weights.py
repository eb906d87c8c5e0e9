"""How much each job counts in a round: by what is left of it where lengths are declared, else by what it has had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from gpq.core import estimates
from gpq.core.batches import GoodputTable
from gpq.core.candidates import Candidate
from gpq.core.models import HOLDS_DEVICES, Config, Job, Shape
from gpq.core.units import JobId, Seconds

UNKNOWN_SECONDS: Seconds = 60.0  # taken to remain of a job of which nothing is known: it is soon known
SERVICE_KNEE = 4000.0  # GPU-seconds that make no difference yet
SERVICE_POWER = 0.4
DEFICIT = 2.0  # times less service than the fair share from which on a job counts for more
PRIORITY_FACTOR = 4.0  # one step of priority


def weights(
    candidates: Sequence[Candidate],
    left: Mapping[JobId, Seconds],
    shares: Mapping[JobId, float],
    now: Seconds,
    config: Config,
) -> dict[JobId, float]:
    """Weights of the jobs. `left`: seconds to the declared end at the best shape, of those whose end is known.

    Where at least one length is known: rank / J, the job that needs the longest ranked 1 (only the order counts, so
    that one very long job does not swamp the rest; compare heSRPT, Berg et al. 2020), and more for a job that got far
    less than its share so far, so that short ones cannot put it off for ever. Else (service + 4000)^-0.4, least attained
    service first. Both times the fair share (so that users count, not their number of jobs) and priority.
    """
    if not candidates:
        return {}
    if left:
        ranks = _ranks({each.job.id: _or_guess(left.get(each.job.id), each.job, now) for each in candidates})
        urgency = {
            each.job.id: ranks[each.job.id]
            * (_deficit(each, shares[each.job.id], now) if config.fairness_floor else 1.0)
            for each in candidates
        }
    else:
        urgency = {
            each.job.id: (1.0 + each.job.service_at(now) / SERVICE_KNEE) ** -SERVICE_POWER for each in candidates
        }
    mean = sum(shares[each.job.id] for each in candidates) / len(candidates)
    return {
        each.job.id: urgency[each.job.id]
        * (shares[each.job.id] / mean if mean > 0 else 1.0)
        * PRIORITY_FACTOR ** min(max(each.job.spec.priority, -10), 10)
        for each in candidates
    }


def seconds_left(jobs: Sequence[Job], tables: Sequence[GoodputTable | None], options: int) -> NDArray[np.float64]:
    """What is left of the declared lengths, jobs x shapes of their tables; infinite where length or speed are not known."""
    speeds = np.zeros((len(jobs), options))
    examples = np.zeros(len(jobs))
    for row, (job, table) in enumerate(zip(jobs, tables, strict=True)):
        left = examples_left(job)
        if table is not None and left is not None and job.profile.declared is not None:
            speeds[row] = table.goodput if job.profile.declared.statistical else table.throughput
            examples[row] = left
    found = np.full(speeds.shape, np.inf)
    np.divide(examples[:, None], speeds, out=found, where=speeds > 0)
    return found


def seconds_at_best(job: Job, shapes: tuple[Shape, ...]) -> Seconds | None:
    """What is left of the declared length at the fastest shape; None when length or speed are not known."""
    times = seconds_left([job], [estimates.table(job, shapes)], len(shapes))
    return float(times.min()) if times.size and np.isfinite(times).any() else None


def examples_left(job: Job) -> float | None:
    """Of the declared length; None where none was declared or nothing is known of how far it is."""
    declared, progress = job.profile.declared, job.profile.progress
    if declared is None or declared.dataset_size <= 0 or progress is None or progress.epochs <= 0:
        return None
    return (1.0 - min(progress.fraction, 1.0)) * declared.dataset_size * progress.epochs


def _or_guess(known: Seconds | None, job: Job, now: Seconds) -> Seconds:
    """Of unknown length: as much is to come as was (Lindy's law), at least UNKNOWN_SECONDS.

    Rounded up to a power of two of them, so that two such jobs do not take turns at every round but at every doubling.
    """
    if known is not None:
        return known
    running = now - job.started_at if job.state in HOLDS_DEVICES and job.started_at is not None else 0.0
    spent = max(job.run_seconds + running, UNKNOWN_SECONDS)
    return float(UNKNOWN_SECONDS * 2.0 ** ceil(log2(spent / UNKNOWN_SECONDS) - 1e-9))


def _deficit(candidate: Candidate, share: float, now: Seconds) -> float:
    """1, or how many times beyond DEFICIT its service falls short of its share (what it cannot use left out)."""
    job = candidate.job
    entitled = min(share, candidate.options.most) * max(now - job.submitted_at, 0.0)
    return max(1.0, (entitled + SERVICE_KNEE) / (job.service_at(now) + SERVICE_KNEE) / DEFICIT)


def _ranks(seconds: Mapping[JobId, Seconds]) -> dict[JobId, float]:
    """Rank / J from the longest (1 / J) to the shortest (1); equal ones share the mean of their ranks."""
    ordered = sorted(seconds.values(), reverse=True)
    first: dict[Seconds, int] = {}
    last: dict[Seconds, int] = {}
    for rank, value in enumerate(ordered, 1):
        first.setdefault(value, rank)
        last[value] = rank
    return {job: (first[value] + last[value]) / 2.0 / len(ordered) for job, value in seconds.items()}
