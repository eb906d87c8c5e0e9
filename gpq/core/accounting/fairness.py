"""What a fair share is, and how jobs and users do against it. Measures only; who gets what is the
policy's to decide.

Shares go by user first (unless that is switched off): every user with live jobs has the same, and
splits it evenly among their jobs, so twenty jobs are not twenty shares. A share is a number of GPUs
that need not be whole; its speed is interpolated between the shapes below and above that the job
could really have (never one imaginary node, as in Pollux's artifact).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpq.core.feasibility.gates import closed
from gpq.core.feasibility.shapes import feasible, gpu_range, nodes_up, supply
from gpq.core.goodput import estimates
from gpq.core.goodput.models import model_of
from gpq.core.model.accounts import MeanShare
from gpq.core.model.jobs import HOLDS_DEVICES, Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds

LEAST_COUNTED: Seconds = 1.0  # between two counts of shares
KEPT_SECONDS: Seconds = 600.0  # of averages that a daemon that is killed may forget

Point = tuple[float, float]  # (GPUs, examples per second), fewest GPUs first


@dataclass(frozen=True, slots=True)
class JobFairness:
    share: float  # GPUs it is entitled to now
    speedup: float | None  # see `speedup_of`
    # finish-time fairness: at most 1 is fair; None while its length or speed is unknown
    rho: float | None


@dataclass(frozen=True, slots=True)
class UserFairness:
    user: str
    jobs: int
    gpus: int  # held now
    share: float  # of the GPUs held by anybody, 0 to 1
    fair_share: float  # 0 to 1
    speedup: float | None  # mean of their jobs whose speedup is known
    rho: float | None  # worst of their jobs
    gpu_seconds: float  # attained by their live jobs


def shares(owners: Mapping[JobId, str], gpus: float) -> dict[JobId, float]:
    """GPUs that each job is entitled to: `gpus` split evenly among users, then evenly among each
    user's jobs."""
    jobs = Counter(owners.values())
    return {job: gpus / (len(jobs) * jobs[user]) for job, user in owners.items()}


def speed_at(points: Sequence[Point], gpus: float) -> float:
    """Speed on a share of `gpus` that need not be whole, 0 without points.

    Linear between the shapes below and above; below the smallest shape the job has that one for
    part of the time; above the largest it gains nothing. A larger shape that is slower is not used.
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
    """Speed now over that of the fair share; None when that is not known."""
    fair = speed_at(points, share)
    return now / fair if fair > 0 else None


def seconds_alone(
    work: float, points: Sequence[Point], share: float, start: Seconds = 0.0
) -> Seconds | None:
    """Time for `work` examples on a share of its own from the start (`start`: until the first
    step); None if unknown."""
    speed = speed_at(points, share)
    return start + work / speed if speed > 0 else None


def finish_time_fairness(
    age: Seconds, remaining: Seconds | None, alone: Seconds | None
) -> float | None:
    """rho = (age + remaining) / time alone on a 1/J share (Themis, NSDI'20; J averaged over the
    life as in Sia).

    Age counts from the submission. None when the length is not known: a job without a declared end
    has no rho.
    """
    if remaining is None or alone is None or alone <= 0:
        return None
    return (max(age, 0.0) + remaining) / alone


def active(snapshot: Snapshot) -> list[Job]:
    """Jobs that compete for devices: all live ones but those that are held, wait for something
    else, or take what is left."""
    gated_jobs, on_hold = closed(snapshot), JobState.HELD
    jobs = (job for name, job in sorted(snapshot.jobs.items()) if name not in gated_jobs)
    return [job for job in jobs if job.state is not on_hold and not job.spec.background]


def devices_up(snapshot: Snapshot) -> int:
    return sum(len(node.devices) for node in nodes_up(snapshot))


def shares_now(snapshot: Snapshot) -> dict[JobId, float]:
    """Shares of the devices that answer, among the active jobs; where users do not count
    (`Config.by_user`), each job for itself."""
    by_user = snapshot.config.by_user
    owners = {job.id: job.spec.user if by_user else str(job.id) for job in active(snapshot)}
    return shares(owners, devices_up(snapshot))


def advance(
    means: Mapping[JobId, MeanShare], snapshot: Snapshot, seconds: Seconds
) -> dict[JobId, MeanShare]:
    """Averages of the live jobs, `seconds` of the present shares later; those of ended jobs are
    dropped. While a job does not compete, its average stays as it is."""
    now = shares_now(snapshot)
    none = MeanShare()
    idle_means = {
        job: mean for job, mean in means.items() if job in snapshot.jobs and job not in now
    }
    return {
        **idle_means,
        **{job: means.get(job, none).after(share, seconds) for job, share in now.items()},
    }


def counted(snapshot: Snapshot) -> Snapshot:
    """With the averages of all shares counted up to its `now`, at most once a second, and from time
    to time to be kept."""
    now = snapshot.now
    elapsed = now - snapshot.means_at if snapshot.means_at else 0.0
    if 0.0 <= elapsed < LEAST_COUNTED and snapshot.means_at:
        return snapshot
    means = advance(snapshot.means, snapshot, max(elapsed, 0.0))
    saved_means, saved_at = snapshot.means_kept, snapshot.means_kept_at or now
    if abs(now - saved_at) >= KEPT_SECONDS:
        saved_means, saved_at = means or {}, now
    return replace(
        snapshot, means=means, means_at=now, means_kept=saved_means, means_kept_at=saved_at
    )


def known_fairness(snapshot: Snapshot) -> dict[JobId, JobFairness]:
    """As `fairness_by_job`, of those active jobs alone that have told anything of themselves: of
    the others there may be thousands, and nothing is known but their share."""
    if all(job.profile.declared is None for job in snapshot.jobs.values()):
        return {}
    means = snapshot.means
    return {
        name: _of(snapshot, snapshot.jobs[name], share, means.get(name, MeanShare()).mean(share))
        for name, share in shares_now(snapshot).items()
        if snapshot.jobs[name].profile.declared is not None
    }


def fairness_by_job(snapshot: Snapshot) -> dict[JobId, JobFairness]:
    """Fairness of each active job; a job whose share was not counted yet has the present one."""
    means = snapshot.means
    return {
        job: _of(snapshot, snapshot.jobs[job], share, means.get(job, MeanShare()).mean(share))
        for job, share in shares_now(snapshot).items()
    }


def _of(snapshot: Snapshot, job: Job, share: float, mean_share: float) -> JobFairness:
    if model_of(job.profile) is None:
        return JobFairness(share, None, None)
    curves = _alone(snapshot, job)
    if curves is None:
        return JobFairness(share, None, None)
    goodputs, speeds = curves
    now, fast = estimates.now_of(job), speedup_of(job, goodputs, share)
    # The end is declared in passes over the data, so it is examples that have to be got through, at
    # any efficiency.
    work, progress = _examples(job), job.profile.progress
    if work is None or progress is None:
        return JobFairness(share, fast, None)
    speed = now.throughput if now is not None and now.throughput > 0 else speed_at(speeds, share)
    remaining = work * (1.0 - min(progress.fraction, 1.0)) / speed if speed > 0 else None
    alone = seconds_alone(work, speeds, mean_share)
    return JobFairness(
        share, fast, finish_time_fairness(snapshot.now - job.submitted_at, remaining, alone)
    )


def speedup_of(job: Job, goodputs: Sequence[Point], share: float) -> float | None:
    """Goodput with the GPUs and the batch of now over that with a fair share and the best batch,
    both by the job's model: a slow minute is no slowdown. A share below the fewest GPUs that the
    job may have counts as these: on them it has no speedup, however many jobs there are. 0 while it
    waits; None while nothing was measured on as many GPUs as the share is."""
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


def concluded(job: Job, snapshot: Snapshot, mean_share: float) -> float | None:
    """Finish-time fairness of a job that has completed: from its submission to its end, less what
    its user held it, over the time alone on `mean_share` GPUs for what it did of its declared
    length."""
    work, progress = _examples(job), job.profile.progress
    if work is None or progress is None or job.ended_at is None or model_of(job.profile) is None:
        return None
    curves = _alone(snapshot, job)
    if curves is None:
        return None
    alone = seconds_alone(work * min(progress.fraction, 1.0), curves[1], mean_share)
    return finish_time_fairness(job.ended_at - job.submitted_at - job.account.held, 0.0, alone)


def _alone(snapshot: Snapshot, job: Job) -> tuple[list[Point], list[Point]] | None:
    """(goodputs, throughputs) of the shapes that it could have if it were alone: on all devices
    that suit it, nobody else's taken out."""
    shapes = feasible(job, snapshot, supply(snapshot, job, {}))
    table = estimates.table(job, shapes)
    if table is None:
        return None
    return _points(shapes, table.goodput.tolist()), _points(shapes, table.throughput.tolist())


def _points(shapes: Sequence[Shape], speeds: Sequence[float]) -> list[Point]:
    """By number of GPUs; of several shapes with the same (other types, other nodes) the fastest."""
    best: dict[int, float] = {}
    for shape, speed in zip(shapes, speeds, strict=True):
        if speed > best.get(shape.replicas, 0.0):
            best[shape.replicas] = speed
    return [(float(count), best[count]) for count in sorted(best)]


def _examples(job: Job) -> float | None:
    """Declared length in examples, None when the script declared none."""
    declared, progress = job.profile.declared, job.profile.progress
    if declared is None or declared.dataset_size <= 0 or progress is None or progress.epochs <= 0:
        return None
    return float(declared.dataset_size) * progress.epochs


def fairness_by_user(snapshot: Snapshot, jobs: Mapping[JobId, JobFairness]) -> list[UserFairness]:
    """One row a user, sorted by name, from the answer of `fairness_by_job`."""
    jobs_by_user: dict[str, list[Job]] = defaultdict(list)
    total_gpus = 0
    for job in active(snapshot):
        jobs_by_user[job.spec.user].append(job)
        total_gpus += job.replicas
    rows = []
    for user, own in sorted(jobs_by_user.items()):
        gpus = sum(job.replicas for job in own)
        job_rows = [jobs[job.id] for job in own if job.id in jobs]
        rows.append(
            UserFairness(
                user,
                len(own),
                gpus,
                gpus / max(total_gpus, 1),
                1.0 / len(jobs_by_user),
                _mean([row.speedup for row in job_rows if row.speedup is not None]),
                max((row.rho for row in job_rows if row.rho is not None), default=None),
                sum(job.service_at(snapshot.now) for job in own),
            )
        )
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
