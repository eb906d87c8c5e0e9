"""What keeps a waiting job from the contest for GPUs, however many are free: other jobs, a time, or
the limit of its array.

A job behind a gate counts for no share. Back-offs after failures (`Job.not_before`) are not gates:
those jobs take part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from gpq.core.feasibility.leases import span
from gpq.core.model.jobs import TERMINAL, Dependency, DesiredState, Job, JobState, On
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, Seconds


def closed_gates(snapshot: Snapshot) -> Mapping[JobId, str]:
    """Headlines of all jobs behind a gate."""
    pending, causes = JobState.PENDING, halted_jobs(snapshot)
    headlines: dict[JobId, str] = {}
    array_jobs: list[Job] = []
    for job in snapshot.jobs.values():
        spec = job.spec
        if job.state is not pending or not (
            job.awaits or job.unmet or spec.begin or spec.seat is not None
        ):
            continue  # nearly all
        if line := _own(job, snapshot.now):
            cause = "" if job.unmet else causes.get(job.id, "")
            headlines[job.id] = f"{line}: {cause}" if cause else line
        elif array_limit(job):
            array_jobs.append(job)
    if array_jobs:
        headlines.update(_beyond_limits(snapshot, array_jobs))
    return headlines


def _beyond_limits(snapshot: Snapshot, array_jobs: list[Job]) -> dict[JobId, str]:
    """Headlines of the jobs beyond their array's limit."""
    headlines = {}
    occupancy = Counter(map(array_of, snapshot.holders))
    for job in sorted(array_jobs, key=lambda job: job.id):
        if job.wish is not DesiredState.RUN or job.not_before > snapshot.now:
            continue
        array, limit = array_of(job), array_limit(job)
        occupancy[array] += 1
        if occupancy[array] > limit:
            headlines[job.id] = f"at most {limit} of array {array} at once"
    return headlines


def without_gated(snapshot: Snapshot) -> Snapshot:
    """The snapshot as a policy sees it, without the jobs behind gates. The same object if there are
    none."""
    shut = closed_gates(snapshot)
    if not shut:
        return snapshot
    return replace(
        snapshot, jobs={name: job for name, job in snapshot.jobs.items() if name not in shut}
    )


def next_opening(snapshot: Snapshot) -> Seconds:
    """When the next job that waits for a time may start. Infinite if there is none. Events open the
    other gates."""
    now = snapshot.now
    begins = [
        job.spec.begin
        for job in snapshot.jobs.values()
        if job.spec.begin > now and job.state is JobState.PENDING
    ]
    return min(begins, default=float("inf"))


def _own(job: Job, now: Seconds) -> str:
    """The headline of this job's own gate, or "" if it is open."""
    if job.unmet:
        return job.unmet
    if job.awaits:
        # `job 12`, or with another end than success `job 12:any`
        names = [f"job {dependency}".removesuffix(f":{On.OK}") for dependency in job.awaits[:3]]
        rest = " and others" if len(job.awaits) > 3 else ""
        return f"after {', '.join(names)}{rest}"
    if job.spec.begin > now:
        return f"begins in {span(job.spec.begin - now)}"
    return ""


def array_of(job: Job) -> JobId:
    return job.spec.seat.array if job.spec.seat is not None else JobId(0)


def array_limit(job: Job) -> int:
    return job.spec.seat.limit if job.spec.seat is not None else 0


def halted_jobs(snapshot: Snapshot) -> dict[JobId, str]:
    """The jobs that do not start on their own, however long anybody waits, and why: another job did
    not end as required, or gpq holds one that keeps failing. So do all that wait for them."""
    roots = {
        job.id: cause for job in snapshot.jobs.values() if (cause := _halt(job, snapshot.config))
    }
    if not roots:
        return {}
    waiters: dict[JobId, list[JobId]] = {}
    for job in snapshot.jobs.values():
        for dependency in job.awaits:
            waiters.setdefault(dependency.job, []).append(job.id)
    lines, queue = dict(roots), list(roots)
    for name in queue:
        for waiter in waiters.get(name, ()):
            if waiter not in lines:
                roots[waiter] = roots[name]
                lines[waiter] = f"job {name} cannot start, because {roots[name]}"
                queue.append(waiter)
    return lines


def _halt(job: Job, config: Config) -> str:
    if job.unmet:
        return job.unmet.partition(", but")[0]
    if job.state is not JobState.HELD or job.quick_failures + job.crashes == 0:
        return ""
    if job.crashes >= config.max_crashes or job.quick_failures >= config.max_quick_failures:
        return f"job {job.id} keeps failing, so gpq holds it"
    return ""


# -- dependencies ----------------------------------------------------------------------------------


def is_met(dependency: Dependency, state: JobState) -> bool:
    """Did the job end as required? Only for states that are ends."""
    if state not in TERMINAL:
        raise ValueError(f"job {dependency.job} has not ended: it is {state}")
    return dependency.on is On.ANY or (state is JobState.COMPLETED) is (dependency.on is On.OK)


def unmet_line(dependency: Dependency, state: JobState) -> str:
    """Why a job that waited for this end will not start on its own."""
    expected_end = "succeeds" if dependency.on is On.OK else "ends without success"
    return (
        f"job {dependency.job} {_ENDED[state]}, but this job starts only if job {dependency.job}"
        f" {expected_end}"
    )


_ENDED = {
    JobState.COMPLETED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "reached its time limit",
}


def told_of_end(jobs: Mapping[JobId, Job], ended: Job) -> dict[JobId, Job]:
    """The jobs that waited for the end of `ended`, after that end."""
    after: dict[JobId, Job] = {}
    for name, job in jobs.items():
        unmet, unmet_by, awaits = job.unmet, job.unmet_by, []
        for dependency in job.awaits:
            if dependency.job != ended.id:
                awaits.append(dependency)
            elif not is_met(dependency, ended.state):
                unmet = unmet or unmet_line(dependency, ended.state)
                unmet_by = (*unmet_by, (ended.id, ended.state))
        if len(awaits) < len(job.awaits):
            after[name] = replace(job, awaits=tuple(awaits), unmet=unmet, unmet_by=unmet_by)
    return after


def told_of_requeue(jobs: Mapping[JobId, Job], names: Set[JobId]) -> dict[JobId, Job]:
    """The jobs that have not started and were to wait for one of `names`, which had ended and is in
    the queue again. They wait for it again."""
    after: dict[JobId, Job] = {}
    for job in jobs.values():
        on = {dependency.job: dependency for dependency in job.spec.after}
        if job.first_started_at is not None or job.placement is not None or names.isdisjoint(on):
            continue
        awaited = {*job.awaits, *(one for one in job.spec.after if one.job in names)}
        unmet_by = tuple((name, state) for name, state in job.unmet_by if name not in names)
        unmet = "" if job.unmet_by else job.unmet
        if unmet_by:
            unmet = unmet_line(on[unmet_by[0][0]], unmet_by[0][1])
        awaits = tuple(sorted(awaited, key=lambda dependency: dependency.job))
        after[job.id] = replace(job, awaits=awaits, unmet=unmet, unmet_by=unmet_by)
    return after
