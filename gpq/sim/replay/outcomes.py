"""The results of a simulated run: by job, and the figures that compare policies. Measures only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpq.core.model.accounts import Saving
from gpq.core.model.units import Seconds

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job of a run. Times in seconds since the start of the workload."""

    name: str
    program: str
    user: str
    submitted_at: Seconds
    started_at: Seconds  # of its first start
    ended_at: Seconds
    restarts: int
    gpu_seconds: float  # restarts included
    rho: float | None  # finish-time fairness, None if unknown
    sizes: tuple[tuple[Seconds, int], ...]  # (time, GPUs from then on)
    growths: Saving = field(default_factory=Saving)

    @property
    def completion_seconds(self) -> Seconds:
        return self.ended_at - self.submitted_at


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: a policy on a workload."""

    policy: str
    workload: str
    seed: int
    gpus: int  # of the cluster
    jobs: tuple[JobOutcome, ...]
    round_seconds: tuple[Seconds, ...]  # CPU time of each round: the policy and the placement
    # mean over time and jobs that hold GPUs, relative to each one's goodput on one GPU
    goodput: float
    wall_seconds: Seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """The row of a run in a comparison. Its field names are those of `gpq simulate --json`."""

    policy: str
    workload: str
    seed: int
    jobs: int
    avg_jct: Seconds
    p50_jct: Seconds
    p99_jct: Seconds
    makespan: Seconds
    rho_p95: float | None
    rho_max: float | None
    rho_above_1: float | None  # share of the jobs, 0 to 1
    restarts_per_job: float
    # hours of jobs that growths saved, as in `gpq report`
    promised_hours: float
    gained_hours: float
    gpu_hours: float
    goodput: float
    round_ms_median: float
    round_ms_max: float
    wall_s: Seconds


def summary(run: Outcome) -> Summary:
    """Figures of one run. Percentiles interpolate linearly between jobs."""
    durations = np.array([job.completion_seconds for job in run.jobs])
    rhos = np.array([job.rho for job in run.jobs if job.rho is not None])
    rounds = np.array(run.round_seconds or [0.0]) * 1e3
    first_submission = min(job.submitted_at for job in run.jobs)
    return Summary(
        run.policy,
        run.workload,
        run.seed,
        len(run.jobs),
        float(durations.mean()),
        float(np.percentile(durations, 50)),
        float(np.percentile(durations, 99)),
        max(job.ended_at for job in run.jobs) - first_submission,
        *_rho_figures(rhos),
        sum(job.restarts for job in run.jobs) / len(run.jobs),
        sum(job.growths.promised for job in run.jobs) / 3600.0,
        sum(job.growths.measured for job in run.jobs) / 3600.0,
        sum(job.gpu_seconds for job in run.jobs) / 3600.0,
        run.goodput,
        float(np.median(rounds)),
        float(rounds.max()),
        run.wall_seconds,
    )


def _rho_figures(rhos: Array) -> tuple[float | None, float | None, float | None]:
    """(95th percentile, worst, share above 1). Each is None if no rho is known."""
    if not len(rhos):
        return None, None, None
    return float(np.percentile(rhos, 95)), float(rhos.max()), float((rhos > 1.0).mean())


def means(rows: Sequence[Summary]) -> list[Summary]:
    """One row per policy, in the order of their first runs: the mean over its runs, or the worst
    for a column that is a worst."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    return [_mean([row for row in rows if row.policy == policy]) for policy in policies]


def _mean(rows: Sequence[Summary]) -> Summary:
    def mean(column: str) -> float:
        return _average(getattr(row, column) for row in rows)

    workload = rows[0].workload
    if len(rows) > 1:
        workload = f"{len(rows)} runs"
    return Summary(
        rows[0].policy,
        workload,
        rows[0].seed,
        sum(row.jobs for row in rows),
        mean("avg_jct"),
        mean("p50_jct"),
        mean("p99_jct"),
        mean("makespan"),
        _mean_of_known(row.rho_p95 for row in rows),
        max(_known_values(row.rho_max for row in rows), default=None),
        _mean_of_known(row.rho_above_1 for row in rows),
        mean("restarts_per_job"),
        mean("promised_hours"),
        mean("gained_hours"),
        mean("gpu_hours"),
        mean("goodput"),
        float(np.median([row.round_ms_median for row in rows])),
        max(row.round_ms_max for row in rows),
        sum(row.wall_s for row in rows),
    )


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    numbers = _known_values(values)
    if not numbers:
        return None
    return _average(numbers)


def _known_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
