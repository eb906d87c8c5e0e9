"""The results of a simulated run: by job, and the figures that compare policies. Measures only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.batches import BatchLimits, candidate_batches
from gpq.core.model.accounts import Saving
from gpq.core.model.nodes import Node
from gpq.core.model.units import Seconds
from gpq.lab.measurements.ground_truth import Task, Truth
from gpq.lab.measurements.timings import NotMeasured

Array = NDArray[np.float64]
_REMEMBERED: dict[tuple[int, str, tuple[tuple[int, ...], ...]], tuple[Truth, Array]] = {}


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
    lies: tuple[str, ...] = ()  # what it reported or asked untruly (lies.KINDS)

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
    rhos = np.array(_known_values(job.rho for job in run.jobs))
    rounds = np.array(run.round_seconds or [0.0]) * 1e3
    first_submission = min(job.submitted_at for job in run.jobs)
    # the 95th percentile, the worst, the share above 1
    rho_figures: tuple[float | None, float | None, float | None] = None, None, None
    if len(rhos):
        rho_figures = float(np.percentile(rhos, 95)), float(rhos.max()), float((rhos > 1.0).mean())
    return Summary(
        run.policy,
        run.workload,
        run.seed,
        len(run.jobs),
        float(durations.mean()),
        float(np.percentile(durations, 50)),
        float(np.percentile(durations, 99)),
        max(job.ended_at for job in run.jobs) - first_submission,
        *rho_figures,
        sum(job.restarts for job in run.jobs) / len(run.jobs),
        sum(job.growths.promised for job in run.jobs) / 3600.0,
        sum(job.growths.measured for job in run.jobs) / 3600.0,
        sum(job.gpu_seconds for job in run.jobs) / 3600.0,
        run.goodput,
        float(np.median(rounds)),
        float(rounds.max()),
        run.wall_seconds,
    )


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """What one member got in a run. Its field names are those of `gpq simulate --json`."""

    policy: str
    workload: str
    seed: int
    member: str  # who submitted the jobs
    lies: tuple[str, ...]  # what they reported or asked untruly
    jobs: int  # as submitted
    avg_jct: Seconds
    gpu_hours: float
    rho_max: float | None


def members(run: Outcome) -> list[MemberSummary]:
    """Figures of each member, sorted by name."""
    jobs_by_member: dict[str, list[JobOutcome]] = {}
    for job in run.jobs:
        jobs_by_member.setdefault(job.user, []).append(job)
    return [
        MemberSummary(
            run.policy,
            run.workload,
            run.seed,
            name,
            jobs[0].lies,
            len(jobs),
            _average(job.completion_seconds for job in jobs),
            sum(job.gpu_seconds for job in jobs) / 3600.0,
            max(_known_values(job.rho for job in jobs), default=None),
        )
        for name, jobs in sorted(jobs_by_member.items())
    ]


# how figures of several runs become one. All others are averaged
MERGED: dict[str, Callable[[list[float]], float]] = {
    "jobs": sum, "rho_max": max, "round_ms_median": median, "round_ms_max": max, "wall_s": sum,
}  # fmt: skip


def means(rows: Sequence[Summary]) -> list[Summary]:
    """One row per policy, in the order of their first runs: the mean over its runs, or the worst
    for a column that is a worst."""
    rows_by_policy: dict[str, list[Summary]] = {}
    for row in rows:
        rows_by_policy.setdefault(row.policy, []).append(row)
    return [_mean(group) for group in rows_by_policy.values()]


def _mean(rows: Sequence[Summary]) -> Summary:
    if len(rows) == 1:
        return rows[0]
    figures: dict[str, Any] = {}
    for column in fields(Summary)[3:]:  # after policy, workload and seed
        values = _known_values(getattr(row, column.name) for row in rows)
        merge = MERGED.get(column.name, _average)
        figures[column.name] = merge(values) if values else None
    return replace(rows[0], workload=f"{len(rows)} runs", **figures)


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _known_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


class Alone:
    """How long a job would take alone on a share of a cluster: the reference of finish-time
    fairness.

    The job starts at once, pays one start, and trains at the best batch size of every epoch, by the
    true times. A share that is not a whole shape is interpolated between the two around it, as Sia
    defines it.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        sizes: dict[str, list[int]] = {}
        for node in nodes:
            for kind, count in Counter(device.type for device in node.devices).items():
                sizes.setdefault(kind, []).append(count)
        self.sizes = {kind: tuple(sorted(sizes[kind], reverse=True)) for kind in sorted(sizes)}

    def seconds(self, task: Task, jobs: float) -> Seconds | None:
        """Seconds, start included, on 1 / `jobs` of the GPUs of every type that it may use: the
        mean over the types, weighted by their GPUs. None if the data do not say."""
        times = [
            (sum(sizes), self._on_type(task, kind, sum(sizes) / jobs))
            for kind, sizes in self.sizes.items()
            if task.gpu_type.lower() in kind.lower()
        ]
        weighted_times = [(gpus, seconds) for gpus, seconds in times if seconds is not None]
        weight = sum(gpus for gpus, _ in weighted_times)
        if not weight:
            return None
        return sum(gpus * seconds for gpus, seconds in weighted_times) / weight

    def speed_on_one(self, truth: Truth, gpu_type: str, epoch: int) -> float:
        """Best true progress on one GPU during an epoch, base-batch steps per second. 0 if it
        cannot run on one."""
        speeds = best_speeds(truth, gpu_type, ((1,),))
        return float(speeds[min(epoch, len(speeds) - 1), 0])

    def _on_type(self, task: Task, kind: str, share: float) -> Seconds | None:
        truth, sizes = task.truth, self.sizes[kind]
        most = truth.most_replicas or sum(sizes)
        if task.rigid:
            most = min(most, task.replicas)
        # packed: parts of the largest node, then whole nodes, the largest first
        node_parts = ((count,) for count in range(1, min(sizes[0], most) + 1))
        whole_nodes = (sizes[:nodes] for nodes in range(2, len(sizes) + 1))
        shapes = (*node_parts, *(counts for counts in whole_nodes if sum(counts) <= most))
        speeds = best_speeds(truth, kind, shapes)
        counts = np.array([0.0, *(sum(counts) for counts in shapes)])
        best_so_far = np.maximum.accumulate(np.hstack([np.zeros((len(speeds), 1)), speeds]), axis=1)
        at_share = np.array([np.interp(share, counts, row) for row in best_so_far])
        if (at_share <= 0).any():
            return None
        work = np.diff([truth.progress(epoch) for epoch in range(truth.epochs + 1)])
        return task.restart + float((work / at_share).sum()) * task.slowdown


def best_speeds(truth: Truth, kind: str, shapes: tuple[tuple[int, ...], ...]) -> Array:
    """True progress at the best batch size, epochs x shapes, base-batch steps per second. 0 without
    measurements."""
    entry = _REMEMBERED.get((id(truth), kind, shapes))
    if entry is not None and entry[0] is truth:
        return entry[1]
    speeds = np.zeros((truth.epochs, len(shapes)))
    for column, counts in enumerate(shapes):
        totals, seconds = _candidates(truth, kind, counts)
        for epoch in range(truth.epochs):
            best = 0.0
            for total, step in zip(totals, seconds, strict=True):
                sqr, var = truth.stats(total, epoch)
                best = max(best, (var + sqr) / (var * truth.base_batch / total + sqr) / step)
            speeds[epoch, column] = best
    _REMEMBERED[id(truth), kind, shapes] = truth, speeds
    return speeds


def _candidates(
    truth: Truth, kind: str, counts: tuple[int, ...]
) -> tuple[list[float], list[Seconds]]:
    """(batch sizes, seconds per step) measured on these GPUs."""
    least, most = truth.limits(kind)
    base = truth.fixed_batch or truth.base_batch
    limits = BatchLimits(
        base, truth.fixed_batch or truth.max_batch, least, most, True, accumulate_alone=True
    )
    atomic, accum, feasible = candidate_batches(limits, np.array([sum(counts)], dtype=np.int64))
    pairs = {
        (float(m), float(s))
        for m, s, ok in zip(atomic[0], accum[0], feasible[0], strict=True)
        if ok
    }
    totals, seconds = [], []
    for m, s in sorted(pairs):
        if sum(counts) == 1 and s == 0 and m > truth.base_batch:
            continue  # alone it accumulates, as in the run
        try:
            step, sync = truth.times(counts, m, kind)
        except NotMeasured:
            continue
        totals.append(sum(counts) * m * (s + 1.0))
        seconds.append(step + s * (step - sync))
    return totals, seconds
