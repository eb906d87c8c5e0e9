"""What must have happened: the result of each job and of the whole demonstration."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from gpq.client import connection
from gpq.demo.cast import CAST, Part
from gpq.demo.stage import Stage
from gpq.policies.registry import entry
from gpq.rpc.job_answers import JobDetail
from gpq.rpc.requests import Show


class JobResult(msgspec.Struct, frozen=True):
    name: str
    id: int
    state: str
    metric: str
    value: float | None
    target: float
    reached: bool
    resizes: int
    restarts: int
    batch_changes: int
    samples_exact: bool  # every pass over the data visited every sample exactly once
    seconds: float


class DemoResult(msgspec.Struct, frozen=True):
    """What `gpq demo --json` prints."""

    completed: int
    jobs: list[JobResult]
    resized: int  # jobs whose number of GPUs changed while they ran
    batch_changed: int  # jobs whose batch size changed without a restart
    samples_exact: bool
    targets_reached: int
    seconds: float
    home: str  # "" for a temporary folder, which is gone
    policy: str
    passed: bool
    schema: int = 1


def judge(here: Stage) -> DemoResult:
    """What each job reached, from the daemon's records."""
    results = [_result(here, part) for part in CAST]
    here.failed = not passes(here.policy, results)
    return DemoResult(
        sum(result.state == "completed" for result in results),
        results,
        sum(result.resizes > 0 for result in results),
        sum(result.batch_changes > 0 for result in results),
        all(result.samples_exact for result in results),
        sum(result.reached for result in results),
        time.monotonic() - here.started,
        str(here.home) if here.failed or not here.temporary else "",
        here.policy,
        not here.failed,
    )


def passes(policy: str, jobs: Sequence[JobResult]) -> bool:
    """Did every job reach its target? Only elastic policies must resize, and only policies that
    know the value of a batch size must change one."""
    traits = entry(policy)
    is_complete = all(
        job.state == "completed" and job.reached and job.samples_exact for job in jobs
    )
    is_resized = traits.gang or any(job.resizes > 0 for job in jobs)
    return (
        is_complete
        and is_resized
        and (traits.own_batch or any(job.batch_changes > 0 for job in jobs))
    )


def _result(here: Stage, part: Part) -> JobResult:
    detail = connection.call(Show(str(here.ids[part.name])), JobDetail)
    job, value = detail.job, detail.metrics.get(part.metric)
    passes = detail.metrics.get("gpq_passes") or 0.0
    return JobResult(
        name=part.name,
        id=job.id,
        state=job.state,
        metric=part.metric,
        value=value,
        target=part.target,
        reached=value is not None and part.is_reached(value),
        resizes=job.resizes,
        restarts=job.restarts,
        batch_changes=job.batch_changes,
        samples_exact=passes > 0 and detail.metrics.get("gpq_passes_exact") == passes,
        seconds=job.run_seconds,
    )
