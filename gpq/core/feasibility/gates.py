"""What keeps a waiting job from the contest for GPUs, however many are free: other jobs, a moment,
the limit of its array.

Behind a gate a job counts for no share. Back-offs after failures (`Job.not_before`) are no gates:
those jobs are in the contest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gpq.core.feasibility.leases import span
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Dependency, Job, JobState, On, Wish
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds


def closed(snapshot: Snapshot) -> Mapping[JobId, str]:
    """Headlines of all jobs behind a gate."""
    pending = JobState.PENDING
    headlines: dict[JobId, str] = {}
    limited: list[Job] = []
    for job in snapshot.jobs.values():
        spec = job.spec
        if job.state is not pending or not (
            job.awaits or job.unmet or spec.begin or spec.seat is not None
        ):
            continue
        if line := _own(job, snapshot.now):
            headlines[job.id] = line
        elif spec.seat is not None and spec.seat.limit:
            limited.append(job)
    if not limited:
        return headlines
    limited.sort(key=lambda job: job.id)
    taken = Counter(array_of(job) for job in snapshot.jobs.values() if job.state in HOLDS_DEVICES)
    for job in limited:
        if job.wish is not Wish.RUN or job.not_before > snapshot.now:
            continue
        taken[array_of(job)] += 1
        if taken[array_of(job)] > array_limit(job):
            headlines[job.id] = f"at most {array_limit(job)} of array {array_of(job)} at once"
    return headlines


def may_be_gated(job: Job) -> bool:
    spec = job.spec
    waits = job.awaits or job.unmet or spec.begin or spec.seat is not None
    return bool(waits) and job.state is JobState.PENDING


def opened(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a policy is to see it: without the jobs behind gates. The same object where
    there are none."""
    shut = closed(snapshot)
    if not shut:
        return snapshot
    return replace(
        snapshot, jobs={name: job for name, job in snapshot.jobs.items() if name not in shut}
    )


def next_opening(snapshot: Snapshot) -> Seconds:
    """When the next job that waits for a moment may start; infinite where none does. Other gates
    open by events."""
    now = snapshot.now
    begins = [
        job.spec.begin
        for job in snapshot.jobs.values()
        if job.spec.begin > now and job.state is JobState.PENDING
    ]
    return min(begins, default=float("inf"))


def _own(job: Job, now: Seconds) -> str:
    """The headline of the gate of this job alone, "" where it stands open."""
    if job.unmet:
        return job.unmet
    if job.awaits:
        return (
            "after"
            f" {', '.join(map(_short, job.awaits[:3]))}"
            f"{' and others' if len(job.awaits) > 3 else ''}"
        )
    if job.spec.begin > now:
        return f"begins in {span(job.spec.begin - now)}"
    return ""


def _short(one: Dependency) -> str:
    return f"job {one.job}" if one.on is On.OK else f"job {one}"


def array_of(job: Job) -> JobId:
    return job.spec.seat.array if job.spec.seat is not None else JobId(0)


def array_limit(job: Job) -> int:
    return job.spec.seat.limit if job.spec.seat is not None else 0


# -- dependencies ----------------------------------------------------------------------------------


def met(one: Dependency, state: JobState) -> bool:
    """Did the job end as it was to? Only for states that are ends."""
    if state not in TERMINAL:
        raise ValueError(f"job {one.job} has not ended: it is {state}")
    return one.on is On.ANY or (state is JobState.COMPLETED) is (one.on is On.OK)


def unmet_line(one: Dependency, state: JobState) -> str:
    """Why a job that waited for this end will not start by itself."""
    wanted = "succeeded" if one.on is On.OK else "ended without success"
    return f"job {one.job} {_ENDED[state]}, and this one was to start only when it had {wanted}"


_ENDED = {
    JobState.COMPLETED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "reached its time limit",
}


def told_of_end(jobs: Mapping[JobId, Job], ended: Job) -> dict[JobId, Job]:
    """Those of `jobs` that waited for the end of `ended`, now that it came."""
    found = {}
    for name, job in jobs.items():
        if job.awaits and any(one.job == ended.id for one in job.awaits):
            broken = [
                one for one in job.awaits if one.job == ended.id and not met(one, ended.state)
            ]
            unmet = unmet_line(broken[0], ended.state) if broken and not job.unmet else job.unmet
            rest = tuple(one for one in job.awaits if one.job != ended.id)
            found[name] = replace(job, awaits=rest, unmet=unmet)
    return found
