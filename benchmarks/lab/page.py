"""The tables of `results/lab.md`, from the results of the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.lab.run import JobResult, RunResult
from benchmarks.lab.workloads import kind_of
from gpq.policies.registry import entry

MOST_STEPS = 1.10  # seconds in steps, relative to the model, up to which a run counts
Simulated = Mapping[str, Mapping[str, float]]  # by policy, the row of `gpq simulate --json`

HEAD = """\
# Real jobs in an emulated lab

Written by `make bench-lab`. Daemon, agents, starts, checkpoints, gradient noise and training are
real, on four servers of four slots on one machine. Only the time of a step is emulated, by Pollux's
model of real applications. Each run has a daemon of its own. `gpq simulate` has the same jobs and
the same step times, and counts 5 s for each start.

- A time goes from the submission of a job to its end. "Of best" is relative to the best policy of
  fixed sizes.
- "Start and stop" is what a training spends neither waiting nor in steps.
- "Promised" is the gain of a resize as the model says at the launch. "Measured" is how the speed of
  progress then changed. Both are geometric means over the resizes for which both are known.
- "Of the model" is the time in steps, relative to the emulated one. Above 1.10 the machine was too
  busy, and the row does not count.
"""


def page(runs: Mapping[str, Sequence[RunResult]], simulated: Mapping[str, Simulated]) -> str:
    """Both by workload."""
    parts = [HEAD]
    for workload, many in runs.items():
        rows = simulated[workload]
        parts += [_about(workload, many), _times(many, rows), _costs(many, rows)]
        parts += [_by_kind(many), _by_job(many)]
    return "\n".join(parts)


def busy(runs: Iterable[RunResult]) -> list[str]:
    """A line for each run that does not count."""
    return [
        f"{run.workload} {run.policy}: steps took {run.steps:.2f} of the model, so the machine was"
        " too busy"
        for run in runs
        if run.steps > MOST_STEPS
    ]


def mean_time(run: RunResult) -> float:
    return statistics.mean(job.seconds for job in run.jobs)


def _best(runs: Sequence[RunResult]) -> RunResult | None:
    """Of the policies of fixed sizes."""
    fixed = [run for run in runs if entry(run.policy).gang and run.steps <= MOST_STEPS]
    return min(fixed, key=mean_time, default=None)


def _about(workload: str, runs: Sequence[RunResult]) -> str:
    commits = ", ".join(sorted({run.commit for run in runs}))
    day, best = max(run.day for run in runs), _best(runs)
    lines = [f"## {workload}", "", f"{day}, commit {commits}, {len(runs[0].jobs)} jobs."]
    for run in runs:
        if best and run.policy == "goodput" and run.steps <= MOST_STEPS:
            ratio = mean_time(run) / mean_time(best)
            lines.append(
                f"A job under `goodput` takes {ratio:.2f} of its time under `{best.policy}`."
            )
    return "\n".join([*lines, *(f"**{line}.**" for line in busy(runs))]) + "\n"


def _times(runs: Sequence[RunResult], simulated: Simulated) -> str:
    best, rows = _best(runs), []
    for run in runs:
        times = sorted(job.seconds for job in run.jobs)
        trainings = [job for job in run.jobs if job.in_steps]
        in_steps = _mean(job.in_steps for job in trainings)
        others = _mean(job.seconds - job.wait for job in trainings) - in_steps
        expected = simulated[run.policy]["avg_jct"]
        is_busy = run.steps > MOST_STEPS
        row = {
            "policy": run.policy,
            "mean s": f"{mean_time(run):.1f}",
            "of best": f"{mean_time(run) / mean_time(best):.2f}" if best else "-",
            "simulated s": f"{expected:.1f}",
            "simulated, of best": "-",
            "p95 s": f"{times[math.ceil(0.95 * len(times)) - 1]:.0f}",
            "worst s": f"{times[-1]:.0f}",
            "wait s": f"{_mean(job.wait for job in run.jobs):.1f}",
            "start and stop s": f"{others:.1f}",
            "in steps s": f"{in_steps:.1f}",
            "targets reached": f"{sum(job.reached for job in run.jobs)} of {len(run.jobs)}",
            "of the model": f"**{run.steps:.2f}, too busy**" if is_busy else f"{run.steps:.3f}",
        }
        if best:
            row["simulated, of best"] = f"{expected / simulated[best.policy]['avg_jct']:.2f}"
        rows.append(row)
    return _table(rows)


def _costs(runs: Sequence[RunResult], simulated: Simulated) -> str:
    rows = []
    for run in runs:
        gains = [gain for job in run.jobs for gain in job.gains]
        rhos = [job.rho for job in run.jobs if job.rho is not None]
        row = {
            "policy": run.policy,
            "starts": f"{sum(job.starts for job in run.jobs)}",
            "resizes": f"{sum(job.resizes for job in run.jobs)}",
            "GPU min": f"{sum(job.gpu_seconds for job in run.jobs) / 60:.1f}",
            "in restarts": f"{sum(job.restart_gpu_seconds for job in run.jobs) / 60:.1f}",
            "GPUs that train": f"{run.training:.1f}",
            "GPUs that start or stop": f"{run.moving:.1f}",
            "mean rho": f"{_mean(rhos):.2f}",
            "worst rho": f"{max(rhos, default=math.nan):.2f}",
            "simulated worst rho": f"{simulated[run.policy]['rho_max'] or math.nan:.2f}",
            "promised": "-",
            "measured": "-",
            "growths saved h": f"{run.gained_hours:.3f} of {run.promised_hours:.3f} promised",
            "CPU": f"{run.cpu:.0%}",
        }
        if gains:
            promised, measured = map(statistics.geometric_mean, zip(*gains, strict=True))
            row |= {"promised": f"{promised:.2f}", "measured": f"{measured:.2f} of {len(gains)}"}
        rows.append(row)
    return _table(rows)


def _by_kind(runs: Sequence[RunResult]) -> str:
    kinds = sorted({kind_of(job.name) for job in runs[0].jobs})
    rows = []
    for run in runs:
        row = {"mean s": run.policy}
        for kind in kinds:
            times = [job.seconds for job in run.jobs if kind_of(job.name) == kind]
            row[kind] = f"{_mean(times):.0f}"
        rows.append(row)
    return _table(rows)


def _by_job(runs: Sequence[RunResult]) -> str:
    policies = [run.policy for run in runs]
    rows = [
        {"s (starts)": jobs[0].name, **dict(zip(policies, map(_words, jobs), strict=True))}
        for jobs in zip(*(run.jobs for run in runs), strict=True)
    ]
    return _table(rows)


def _words(job: JobResult) -> str:
    """Seconds, with the starts if there were several."""
    starts = f" ({job.starts})" if job.starts > 1 else ""
    return f"{job.seconds:.0f}{starts}{'' if job.reached else ', missed'}"


def _mean(values: Iterable[float]) -> float:
    """NaN if there are none."""
    values = list(values)
    return statistics.mean(values) if values else math.nan


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
