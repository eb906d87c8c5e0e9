"""What a fair share is, and how jobs and users compare with it. It only measures. The policy
decides who gets what.

Shares go by user first, unless that is switched off. Every user with live jobs has a share by
weight and splits it evenly among the jobs, so twenty jobs are not twenty shares. A share is a
number of GPUs and need not be whole. Its throughput is interpolated between the shapes below and
above that the job could really have. It never uses one imaginary server, as Pollux's artifact does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpq.core.feasibility.gates import closed_gates
from gpq.core.feasibility.shapes import feasible, gpu_range, nodes_up, supply
from gpq.core.goodput import estimates
from gpq.core.goodput.models import model_of
from gpq.core.model.accounts import MeanShare, UserShare
from gpq.core.model.jobs import HOLDS_DEVICES, Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds

LEAST_COUNTED: Seconds = 1.0  # between two counts of shares
KEPT_SECONDS: Seconds = 600.0  # of averages, which a killed daemon may lose

Point = tuple[float, float]  # (GPUs, examples per second), fewest GPUs first


@dataclass(frozen=True, slots=True)
class JobFairness:
    share: float  # GPUs of its fair share now
    speedup: float | None  # see `speedup_of`
    # finish-time fairness: at most 1 is fair. None while its length or throughput is unknown
    rho: float | None


def shares(
    owners: Mapping[JobId, str], gpus: float, weights: Mapping[str, float] | None = None
) -> dict[JobId, float]:
    """The fair share of each job in GPUs: `gpus` split among users by their weights (1 unless
    named), then evenly among each user's jobs."""
    jobs, named = Counter(owners.values()), weights or {}
    unit = gpus / sum(named.get(user, 1.0) for user in jobs) if jobs else 0.0
    return {job: unit * named.get(user, 1.0) / jobs[user] for job, user in owners.items()}


def speed_at(points: Sequence[Point], gpus: float) -> float:
    """Throughput on a share of `gpus`, which need not be whole. 0 without points.

    It is linear between the shapes below and above. Below the smallest shape, the job has that
    shape for part of the time. Above the largest one it gains nothing. A larger shape with less
    throughput is not used.
    """
    if not points or gpus <= 0:
        return 0.0
    below: Point = (0.0, 0.0)
    for count, speed in points:
        best = max(speed, below[1])
        if count >= gpus:
            part = (gpus - below[0]) / (count - below[0])
            return below[1] + part * (best - below[1])
        below = (count, best)
    return below[1]


def speedup(now: float, points: Sequence[Point], share: float) -> float | None:
    """Throughput now over that of the fair share. None if that is not known."""
    fair = speed_at(points, share)
    return now / fair if fair > 0 else None


def seconds_alone(work: float, points: Sequence[Point], share: float) -> Seconds | None:
    """Time for `work` examples on its own share. None if unknown."""
    speed = speed_at(points, share)
    return work / speed if speed > 0 else None


def finish_time_fairness(
    age: Seconds, remaining: Seconds | None, alone: Seconds | None
) -> float | None:
    """rho = (age + remaining) / time alone on a 1/J share (Themis, NSDI'20, with J averaged over
    the life as in Sia).

    Age counts from the submission. None if the length is not known: a job without a declared end
    has no rho.
    """
    if remaining is None or alone is None or alone <= 0:
        return None
    return (max(age, 0.0) + remaining) / alone


def active(snapshot: Snapshot) -> list[Job]:
    """Jobs that compete for devices: all live jobs except those that are held, wait for something
    else, or run in the background."""
    gated_jobs, on_hold = closed_gates(snapshot), JobState.HELD
    return [
        job
        for name, job in sorted(snapshot.jobs.items())
        if name not in gated_jobs and job.state is not on_hold and not job.spec.background
    ]


def devices_up(snapshot: Snapshot) -> int:
    return sum(len(node.devices) for node in nodes_up(snapshot))


def shares_now(snapshot: Snapshot) -> dict[JobId, float]:
    """Shares of the devices that answer among the active jobs. If users do not count
    (`Config.by_user`), each job stands for itself."""
    by_user = snapshot.config.by_user
    owners = {job.id: job.spec.user if by_user else str(job.id) for job in active(snapshot)}
    return shares(owners, devices_up(snapshot), dict(snapshot.config.user_weights))


def advance(
    means: Mapping[JobId, MeanShare], snapshot: Snapshot, seconds: Seconds
) -> dict[JobId, MeanShare]:
    """Averages of the live jobs after `seconds` of the present shares. Ended jobs are dropped. The
    average of a job that does not compete stays as it is."""
    now = shares_now(snapshot)
    none = MeanShare()
    return {
        **{job: mean for job, mean in means.items() if job in snapshot.jobs},
        **{job: means.get(job, none).after(share, seconds) for job, share in now.items()},
    }


def count_shares(snapshot: Snapshot) -> Snapshot:
    """With the averages counted up to `now`, at most once a second. From time to time they are also
    stored."""
    now = snapshot.now
    elapsed = now - snapshot.means_at if snapshot.means_at else 0.0
    if 0.0 <= elapsed < LEAST_COUNTED and snapshot.means_at:
        return snapshot
    means = advance(snapshot.means, snapshot, max(elapsed, 0.0))
    saved_means, saved_at = snapshot.means_kept, snapshot.means_kept_at or now
    if abs(now - saved_at) >= KEPT_SECONDS:
        saved_means, saved_at = means, now
    return replace(
        snapshot, means=means, means_at=now, means_kept=saved_means, means_kept_at=saved_at
    )


def known_fairness(snapshot: Snapshot) -> dict[JobId, JobFairness]:
    """Fairness of the active jobs that have reported something. There may be thousands of others,
    and only their share is known. A job whose share was not counted yet gets the present one."""
    if all(job.profile.declared is None for job in snapshot.jobs.values()):
        return {}
    means = snapshot.means
    return {
        name: _of(snapshot, snapshot.jobs[name], share, means.get(name, MeanShare()).mean(share))
        for name, share in shares_now(snapshot).items()
        if snapshot.jobs[name].profile.declared is not None
    }


def _of(snapshot: Snapshot, job: Job, share: float, mean_share: float) -> JobFairness:
    curves = _alone(snapshot, job)
    if curves is None:
        return JobFairness(share, None, None)
    goodputs, speeds = curves
    now, fast = estimates.now_of(job), speedup_of(job, goodputs, share)
    length, left, declared = job.profile.length, job.profile.length_left, job.profile.declared
    if length is None or left is None or declared is None:
        return JobFairness(share, fast, None)
    speed = speed_at(speeds, share)
    if now is not None and now.throughput > 0:
        speed = now.goodput if declared.statistical else now.throughput
    remaining = left / speed if speed > 0 else None
    alone = seconds_alone(length, speeds, mean_share)
    rho = finish_time_fairness(snapshot.now - job.submitted_at, remaining, alone)
    return JobFairness(share, fast, rho)


def speedup_of(job: Job, goodputs: Sequence[Point], share: float) -> float | None:
    """Goodput with the present GPUs and batch over that with a fair share and the best batch. Both
    come from the job's model, so a slow minute does not count as a slowdown. A share below the
    job's fewest GPUs counts as these, because the job has no speedup on them, however many jobs
    there are. 0 while it waits. None if nothing was measured on as many GPUs as the share."""
    if job.state not in HOLDS_DEVICES:
        return 0.0
    now = estimates.now_of(job, measured=False)
    share = max(share, float(gpu_range(job, 1)[0]))
    point_gpus = next(
        (count for count, _ in goodputs if count >= share),
        max((count for count, _ in goodputs), default=0.0),
    )
    if now is None or point_gpus > job.profile.max_replicas:
        return None
    return speedup(now.goodput, goodputs, share)


def final_fairness(job: Job, snapshot: Snapshot, mean_share: float) -> float | None:
    """Finish-time fairness of a completed job: its time over its time alone. Its time is from
    submission to end, without holds by its user. Its time alone is on `mean_share` GPUs, for the
    part of its declared length that it did."""
    length, left = job.profile.length, job.profile.length_left
    curves = _alone(snapshot, job)
    if curves is None or length is None or left is None or job.ended_at is None:
        return None
    alone = seconds_alone(length - left, curves[1], mean_share)
    return finish_time_fairness(job.ended_at - job.submitted_at - job.account.held, 0.0, alone)


def _alone(snapshot: Snapshot, job: Job) -> tuple[list[Point], list[Point]] | None:
    """Goodputs of the shapes that it could have alone, and the speeds at which its declared length
    goes by there. Alone means on all devices that suit it, whoever holds them."""
    declared = job.profile.declared
    if declared is None or model_of(job.profile) is None:
        return None
    shapes = feasible(job, snapshot, supply(snapshot, job, {}))
    table = estimates.table(job, shapes)
    if table is None:
        return None
    goodputs = _points(shapes, table.goodput.tolist())
    if declared.statistical:
        return goodputs, goodputs
    return goodputs, _points(shapes, table.throughput.tolist())


def _points(shapes: Sequence[Shape], speeds: Sequence[float]) -> list[Point]:
    """By number of GPUs. Of several shapes with the same number (other types, other servers) the
    fastest."""
    best: dict[int, float] = {}
    for shape, speed in zip(shapes, speeds, strict=True):
        if speed > best.get(shape.replicas, 0.0):
            best[shape.replicas] = speed
    return [(float(count), best[count]) for count in sorted(best)]


def fairness_by_user(snapshot: Snapshot, jobs: Mapping[JobId, JobFairness]) -> list[UserShare]:
    """One row for each user, sorted by name, from the answer of `fairness_by_job`."""
    jobs_by_user: dict[str, list[Job]] = defaultdict(list)
    total_gpus = 0
    for job in active(snapshot):
        jobs_by_user[job.spec.user].append(job)
        total_gpus += job.replicas
    named = dict(snapshot.config.user_weights)
    weights = {user: named.get(user, 1.0) for user in jobs_by_user}
    rows = []
    for user, own in sorted(jobs_by_user.items()):
        gpus = sum(job.replicas for job in own)
        job_rows = [jobs[job.id] for job in own if job.id in jobs]
        speedups = [row.speedup for row in job_rows if row.speedup is not None]
        rows.append(
            UserShare(
                user,
                len(own),
                gpus,
                gpus / max(total_gpus, 1),
                weights[user] / sum(weights.values()),
                sum(speedups) / len(speedups) if speedups else None,
                max((row.rho for row in job_rows if row.rho is not None), default=None),
                sum(job.service_at(snapshot.now) for job in own),
            )
        )
    return rows
