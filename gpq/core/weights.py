"""How much each job counts in a round: by what is left of it where lengths are declared, else by what it has had."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

from gpq.core import estimates
from gpq.core.goodput import GoodputTable
from gpq.core.models import HOLDS_DEVICES, Job, JobId, Seconds, Shape, Snapshot

UNKNOWN_SECONDS: Seconds = 60.0  # taken to remain of a job of which nothing is known: it is soon known
SERVICE_KNEE = 4000.0  # GPU-seconds that make no difference yet
SERVICE_POWER = 0.4
DEFICIT = 2.0  # times less service than the fair share from which on a job counts for more
PRIORITY_FACTOR = 4.0  # one step of priority


def weights(
    snapshot: Snapshot, options: Mapping[JobId, tuple[Shape, ...]], shares: Mapping[JobId, float]
) -> dict[JobId, float]:
    """Weights of the jobs in `options`, their possible shapes.

    Where at least one length is known: rank / J, the job that needs the longest ranked 1 (only the order counts, so
    that one very long job does not swamp the rest; compare heSRPT, Berg et al. 2020), and more for a job that got far
    less than its share so far, so that short ones cannot put it off for ever. Else (service + 4000)^-0.4, least attained
    service first. Both times the fair share (so that users count, not their number of jobs) and priority.
    """
    jobs = [snapshot.jobs[name] for name in options]
    needed = {job.id: seconds_at_best(job, options[job.id]) for job in jobs}
    if any(seconds is not None for seconds in needed.values()):
        ranks = _ranks({job.id: _or_guess(needed[job.id], job, snapshot.now) for job in jobs})
        urgency = {job.id: ranks[job.id] * _deficit(job, options[job.id], shares[job.id], snapshot.now) for job in jobs}
    else:
        urgency = {job.id: (1.0 + job.service_at(snapshot.now) / SERVICE_KNEE) ** -SERVICE_POWER for job in jobs}
    mean = sum(shares[job.id] for job in jobs) / len(jobs) if jobs else 1.0
    return {
        job.id: urgency[job.id]
        * (shares[job.id] / mean if mean > 0 else 1.0)
        * PRIORITY_FACTOR ** min(max(job.spec.priority, -10), 10)
        for job in jobs
    }


def seconds_at_best(job: Job, shapes: tuple[Shape, ...]) -> Seconds | None:
    """What is left of the declared length at the fastest shape; None when length or speed are not known."""
    table = estimates.table(job, shapes)
    return min((left for left in seconds_left(job, table) if left is not None), default=None) if table else None


def seconds_left(job: Job, table: GoodputTable) -> list[Seconds | None]:
    """What is left of the declared length, by shape of `table`; None where length or speed are not known."""
    declared, progress = job.profile.declared, job.profile.progress
    if declared is None or declared.dataset_size <= 0 or progress is None or progress.epochs <= 0:
        return [None] * len(table.throughput)
    examples = (1.0 - min(progress.fraction, 1.0)) * declared.dataset_size * progress.epochs
    speeds = table.goodput if declared.statistical else table.throughput
    return [examples / speed if speed > 0 else None for speed in speeds.tolist()]


def _or_guess(known: Seconds | None, job: Job, now: Seconds) -> Seconds:
    """Of unknown length: as much is to come as was (Lindy's law), at least UNKNOWN_SECONDS.

    Rounded up to a power of two of them, so that two such jobs do not take turns at every round but at every doubling.
    """
    if known is not None:
        return known
    running = now - job.started_at if job.state in HOLDS_DEVICES and job.started_at is not None else 0.0
    spent = max(job.run_seconds + running, UNKNOWN_SECONDS)
    return float(UNKNOWN_SECONDS * 2.0 ** ceil(log2(spent / UNKNOWN_SECONDS) - 1e-9))


def _deficit(job: Job, shapes: tuple[Shape, ...], share: float, now: Seconds) -> float:
    """1, or how many times beyond DEFICIT its service falls short of its share (what it cannot use left out)."""
    entitled = min(share, shapes[-1].replicas if shapes else 0) * max(now - job.submitted_at, 0.0)
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
