"""Facts -> a job's account: its waits, the worth of its GPUs, the cost of restarts, and how fairly
it was treated.

The worth of an attempt is its useful work over the job's best goodput per GPU, in GPU-seconds. That
is the time its work would have taken on one GPU, used as well as this job can use one. Useful work
is progress in base steps times the base batch size. The training library itself integrates the base
steps: the sum of AdaScale gains, so throughput times efficiency. Only work beyond all earlier
progress counts, so work that a crash undid counts once. The best goodput per GPU is the highest
point of the job's goodput curve over its number of GPUs (`estimates.curve`). The curve comes from
its model on the type of GPU that the attempt held. A job that reports no progress has no worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpq.core.accounting.fairness import final_fairness
from gpq.core.goodput import estimates
from gpq.core.model.accounts import Account, AttemptAccount, MeanShare, Saving, restart_seconds
from gpq.core.model.events import End, Failed, Stopped
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds


def open_account(at: Seconds) -> Account:
    """The account of a submitted job."""
    return Account(mark=at, waited=0.0, restart_cost=0.0)


def hold(job: Job, at: Seconds) -> Account:
    return replace(so_far(job, at), mark=at)


def release(job: Job, at: Seconds) -> Account:
    return replace(so_far(job, at), mark=at if job.attempt == 0 else None)


def launch(job: Job, at: Seconds) -> Account:
    return replace(so_far(job, at), mark=None, working_at=None)


def edit(job: Job, at: Seconds) -> Account:
    """What it waited for besides GPUs may now be over, so its wait for GPUs counts from here."""
    return replace(job.account, mark=at) if _is_gated(job, at) else job.account


def let_go(jobs: Mapping[JobId, Job], at: Seconds) -> dict[JobId, Job]:
    """The jobs that waited for the end of another job, after that end."""
    jobs_after = {}
    for name, job in jobs.items():
        if job.account.mark is not None and job.state is JobState.PENDING:
            job = replace(job, account=replace(job.account, mark=at))
        jobs_after[name] = job
    return jobs_after


def so_far(job: Job, at: Seconds) -> Account:
    """The account of a live job up to `at`. The time since the mark counts as what it was. Behind
    its own gate a job does not wait for GPUs."""
    account = job.account
    if account.mark is None:
        return account
    if job.state is JobState.HELD:
        return replace(account, held=account.held + max(at - account.mark, 0.0))
    if account.waited is None or _is_gated(job, at):
        return account
    return replace(
        account, waited=account.waited + max(at - max(account.mark, job.spec.begin), 0.0)
    )


def _is_gated(job: Job, at: Seconds) -> bool:
    return (
        job.account.mark is not None
        and job.state is JobState.PENDING
        and bool(job.awaits or job.unmet or job.spec.begin > at)
    )


def tally(job: Job, now: Seconds) -> AttemptAccount:
    """What the current attempt has come to until now."""
    reports = job.profile.declared is not None
    working_at = job.account.working_at if reports else job.started_at
    warm = any(times.attempt == job.attempt and times.warm for times in job.restart_times)
    promised = measured = None
    for gain in job.gains[-1:]:
        if gain.attempt == job.attempt:
            promised, measured = gain.promise.ratio, gain.measured
    return AttemptAccount(working_at, worth(job, now), warm, promised, measured)


def growths(job: Job, now: Seconds) -> Saving:
    """What its growths have saved until now."""
    if job.launched_at is None:
        return job.account.growths
    return job.account.growths + tally(job, now).saving(max(now - job.launched_at, 0.0))


def worth(job: Job, now: Seconds) -> float | None:
    """GPU-seconds, at most what the attempt held."""
    declared, progress = job.profile.declared, job.profile.progress
    if declared is None or job.placement is None or job.launched_at is None:
        return None
    steps = max((progress.base_steps if progress is not None else 0.0) - job.account.peak, 0.0)
    if steps <= 0:
        return 0.0
    best = best_goodput(job)
    if best is None:
        return None
    return min(steps * declared.batch_size / best, max(now - job.launched_at, 0.0) * job.replicas)


def best_goodput(job: Job) -> float | None:
    """The highest goodput per GPU of the job's curve, in examples per second at the base batch
    size. None while unknown."""
    kind = job.placement.gpu_type if job.placement is not None else ""
    most = max(job.profile.max_replicas, job.spec.min_gpus)
    points = estimates.curve(job, [Shape(count, 1, kind) for count in range(1, most + 1)])
    return max((point.goodput / point.gpus for point in points), default=None)


def over(job: Job, event: End, ended: Seconds) -> Account:
    """The account after the current attempt of `job` ended at `ended`."""
    account, attempt_tally = job.account, event.tally or tally(job, ended)
    began = job.launched_at if job.launched_at is not None else ended
    stopping_at = job.stop_sent_at if isinstance(event, Stopped) else None
    peak, worth = account.peak, account.worth
    restart_cost, failed = account.restart_cost, account.failed
    if job.profile.progress is not None:
        peak = max(peak, job.profile.progress.base_steps)
    if attempt_tally.worth is not None:
        worth = (worth or 0.0) + attempt_tally.worth
    if restart_cost is not None:
        seconds = restart_seconds(job.restarts > 0, began, attempt_tally, stopping_at, ended)
        restart_cost += seconds * job.replicas
    if is_failure(event):
        failed += max(ended - began, 0.0) * job.replicas
    return replace(
        account,
        mark=None,
        working_at=None,
        growths=account.growths + attempt_tally.saving(ended - began),
        peak=peak,
        worth=worth,
        restart_cost=restart_cost,
        failed=failed,
    )


def is_failure(event: End) -> bool:
    """Did the attempt fail, or was it lost? An attempt that was asked to stop, or that its time
    limit ended, did not fail."""
    return isinstance(event, Failed) or (
        isinstance(event, Stopped)
        and (event.failed or event.crashed or event.exit.lost or event.exit.fenced)
    )


def settle(job: Job, snapshot: Snapshot, means: Mapping[JobId, MeanShare]) -> Job:
    """A job that has ended, with how fairly it was treated. `snapshot` may be any one from the time
    of its end."""
    mean = means.get(job.id)
    if mean is None or mean.seconds <= 0 or job.first_started_at is None:
        return job
    share = mean.mean(0.0)
    rho = final_fairness(job, snapshot, share) if job.state is JobState.COMPLETED else None
    return replace(job, account=replace(job.account, share=share, rho=rho))
