"""The tables of `results/real.md`, from the records of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.real.records import JobRecord, RunRecord

HEAD = """\
# Real trainings to their targets

Written by `make bench-real`. Each run has its own daemon with default settings and {slots}. Times
go from the submission of a job to its end. Every script trains all its epochs and then checks its
target. The policies take turns, and the tables show medians over the repetitions. `fifo`,
`backfill` and `tiresias` give each job the number of GPUs that it asked for. gpq tunes batch sizes
under every policy. "Promised" is how much faster a resize makes a job, as the model says just
before it. "Measured" is how the speed of the job's progress then changed. Both are geometric means
over the resizes for which both are known.
"""
FIXED = ("fifo", "backfill", "tiresias")
BASE = "fifo"


def page(records: Iterable[RunRecord], slots: str) -> str:
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        runs.setdefault(record.policy, []).append(record)
    return "\n".join([HEAD.format(slots=slots), _about(runs), _by_policy(runs), _by_job(runs)])


def mean_time(runs: Sequence[RunRecord]) -> float:
    """The median over the repetitions of the jobs' mean time, in seconds."""
    return _median(runs, lambda job: job.seconds, statistics.mean)


def worst_ratio(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> tuple[float, str]:
    """(ratio, name) of the job with the largest median time relative to that in the other runs."""
    times, base = _times(runs), _times(others)
    return max((seconds / base[name], name) for name, seconds in times.items())


def _about(runs: dict[str, list[RunRecord]]) -> str:
    every = [record for records in runs.values() for record in records]
    commits = ", ".join(sorted({record.commit for record in every}))
    loads = [record.load for record in every]
    lines = [
        f"{max(record.day for record in every)}, commit {commits}, {len(every[0].jobs)} jobs,"
        f" {min(map(len, runs.values()))} repetitions. The load of the machine before a run was"
        f" {min(loads):.1f} to {max(loads):.1f}.",
    ]
    fixed = {policy: mean_time(runs[policy]) for policy in FIXED if policy in runs}
    if fixed and "goodput" in runs:
        best = min(fixed, key=lambda policy: fixed[policy])
        lines.append(
            f"The mean time under `goodput` is {mean_time(runs['goodput']) / fixed[best]:.2f} of"
            f" that under the best fixed policy, `{best}`."
        )
    return "\n".join(lines) + "\n"


def _by_policy(runs: dict[str, list[RunRecord]]) -> str:
    rows = [
        "| policy | mean time s | worst time s | slowest job, relative to `fifo` | GPU hours"
        " | restarts | their GPU hours | resizes | promised | measured | targets reached |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for policy, records in runs.items():
        slowest = "-"
        if BASE in runs:
            ratio, name = worst_ratio(records, runs[BASE])
            slowest = f"{ratio:.2f} ({name})"
        promised, measured = _gains(records)
        jobs = [job for record in records for job in record.jobs]
        rows.append(
            f"| {policy} | {mean_time(records):.1f} | {_median(records, _seconds, max):.1f}"
            f" | {slowest}"
            f" | {_median(records, lambda job: job.gpu_hours, sum):.3f}"
            f" | {_median(records, lambda job: job.restarts, sum):g}"
            f" | {_median(records, lambda job: job.restart_gpu_hours, sum):.3f}"
            f" | {_median(records, lambda job: len(job.gains), sum):g}"
            f" | {promised} | {measured}"
            f" | {sum(job.reached for job in jobs)} of {len(jobs)} |"
        )
    return "\n".join(rows) + "\n"


def _by_job(runs: dict[str, list[RunRecord]]) -> str:
    times = {policy: _times(records) for policy, records in runs.items()}
    names = [job.name for job in next(iter(runs.values()))[0].jobs]
    rows = [f"| job | {' | '.join(times)} |", f"|---|{'---|' * len(times)}"]
    rows += [
        f"| {name} | {' | '.join(f'{column[name]:.1f}' for column in times.values())} |"
        for name in names
    ]
    return "Median time of each job in seconds:\n\n" + "\n".join(rows) + "\n"


def _times(runs: Sequence[RunRecord]) -> dict[str, float]:
    """Median seconds by job."""
    names = [job.name for job in runs[0].jobs]
    return {
        name: statistics.median(
            job.seconds for record in runs for job in record.jobs if job.name == name
        )
        for name in names
    }


def _gains(runs: Sequence[RunRecord]) -> tuple[str, str]:
    """(promised, measured) over all runs"""
    every = [gain for record in runs for job in record.jobs for gain in job.gains]
    both = [
        (gain.promised, gain.measured)
        for gain in every
        if gain.promised is not None and gain.measured is not None
    ]
    if not both:
        return "-", "-"
    promised, measured = (statistics.geometric_mean(column) for column in zip(*both, strict=True))
    return f"{promised:.2f}", f"{measured:.2f} of {len(both)}"


def _seconds(job: JobRecord) -> float:
    return job.seconds


def _median(
    runs: Sequence[RunRecord],
    figure: Callable[[JobRecord], float],
    total: Callable[[Iterator[float]], float],
) -> float:
    return statistics.median(total(map(figure, record.jobs)) for record in runs)
