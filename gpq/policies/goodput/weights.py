"""How much each job counts in a round: by what is left of it if lengths are declared, otherwise by
what it has had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2

from gpq.core.model.jobs import HOLDS_DEVICES, Job
from gpq.core.model.units import JobId, Seconds
from gpq.policies.goodput.candidates import Candidate
from gpq.policies.shared.eligible import priority_weight

# assumed for a job about which nothing is known, which soon changes
UNKNOWN_SECONDS: Seconds = 60.0
SERVICE_KNEE = 4000.0  # GPU-seconds below which service makes little difference
SERVICE_POWER = 0.4
DEFICIT = 1.75  # a job with this many times less service than its fair share counts for more


def weights(
    candidates: Sequence[Candidate],
    remaining_seconds: Mapping[JobId, Seconds],
    shares: Mapping[JobId, float],
    now: Seconds,
    *,
    with_floor: bool,
) -> dict[JobId, float]:
    """Weights of the jobs. `remaining_seconds`: to the declared end on the fair share, for jobs
    whose end is known.

    If at least one length is known, the weight is rank / J, and the longest job has rank 1. Only
    the order counts, so that one very long job does not swamp the rest (compare heSRPT, Berg et al.
    2020). A job that got far less than its share so far counts for more, so that short ones cannot
    delay it forever. If no length is known, the weight is (service + 4000)^-0.4, least attained
    service first. Both are multiplied by the fair share, so that users count and not their number
    of jobs, and by priority.
    """
    if not candidates:
        return {}
    if remaining_seconds:
        ranks = _ranks(
            {
                candidate.job.id: _or_guess(
                    remaining_seconds.get(candidate.job.id), candidate.job, now
                )
                for candidate in candidates
            }
        )
        urgency = {
            candidate.job.id: ranks[candidate.job.id]
            * (_deficit(candidate, shares[candidate.job.id], now) if with_floor else 1.0)
            for candidate in candidates
        }
    else:
        urgency = {
            candidate.job.id: (1.0 + candidate.job.service_at(now) / SERVICE_KNEE) ** -SERVICE_POWER
            for candidate in candidates
        }
    mean = sum(shares[candidate.job.id] for candidate in candidates) / len(candidates)
    return {
        candidate.job.id: urgency[candidate.job.id]
        * (shares[candidate.job.id] / mean if mean > 0 else 1.0)
        * priority_weight(candidate.job)
        for candidate in candidates
    }


def _or_guess(seconds: Seconds | None, job: Job, now: Seconds) -> Seconds:
    """A job of unknown length has as much ahead as behind it (Lindy's law), at least
    UNKNOWN_SECONDS.

    This is rounded up to a power of two of them, so that two such jobs take turns only at each
    doubling, not in every round.
    """
    if seconds is not None:
        return seconds
    run_seconds = job.run_seconds
    if job.state in HOLDS_DEVICES and job.started_at is not None:
        run_seconds += now - job.started_at
    spent = max(run_seconds, UNKNOWN_SECONDS)
    return float(UNKNOWN_SECONDS * 2.0 ** ceil(log2(spent / UNKNOWN_SECONDS) - 1e-9))


def _deficit(candidate: Candidate, share: float, now: Seconds) -> float:
    """1, or how many times beyond DEFICIT its service falls short of its share. What it cannot use
    does not count."""
    job = candidate.job
    fair_service = min(share, candidate.options.most) * max(now - job.submitted_at, 0.0)
    return max(1.0, (fair_service + SERVICE_KNEE) / (job.service_at(now) + SERVICE_KNEE) / DEFICIT)


def _ranks(seconds: Mapping[JobId, Seconds]) -> dict[JobId, float]:
    """Rank / J from the longest (1 / J) to the shortest (1). Equal ones share the mean of their
    ranks."""
    ordered = sorted(seconds.values(), reverse=True)
    first: dict[Seconds, int] = {}
    last: dict[Seconds, int] = {}
    for rank, value in enumerate(ordered, 1):
        first.setdefault(value, rank)
        last[value] = rank
    return {
        job: (first[value] + last[value]) / 2.0 / len(ordered) for job, value in seconds.items()
    }
