"""Where a job's environment exists: what servers reported, which ones to ask, and which ones a job
may use. Pure.

`JobSpec.environment` identifies an environment. It is a digest of interpreter, working directory,
setup, modules and variables, and "" asks for nothing. gpq does not use a server that it has not
asked yet, or that lacks the environment. A server where a part of a job with the same environment
runs has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpq.core.model.actions import Prepare
from gpq.core.model.events import EnvironmentSeen
from gpq.core.model.jobs import HOLDS_DEVICES, DesiredState, Job, JobSpec, JobState
from gpq.core.model.nodes import Fitness, NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds

# gpq checks a fit environment again after this time, if a job may still be placed there
FIT_FOR: Seconds = 600.0
UNFIT_FOR: Seconds = 30.0  # and an unfit one after this time: the user may have fixed it
KEPT: Seconds = 3600.0  # findings about environments that no job asks for any more
MANY = 1000  # gpq drops those findings if there are more than this

Checks = Mapping[tuple[NodeId, str], Fitness]


def is_fit(checks: Checks, node: NodeId, environment: str) -> bool:
    """May a job with this environment be placed there?"""
    if not environment:
        return True
    fitness = checks.get((node, environment))
    return fitness is not None and fitness.fit


def wanted(snapshot: Snapshot, only: NodeId | None = None) -> list[Prepare]:
    """What servers that answer must check now: each environment of jobs that may be placed, once
    per server."""
    job_by_environment = _jobs_by_environment(snapshot)
    if not job_by_environment:
        return []
    nodes = [only] if only is not None else sorted(snapshot.nodes)
    return [
        Prepare(node, environment, job_by_environment[environment].spec)
        for node in nodes
        if _is_up(snapshot, node)
        for environment in sorted(job_by_environment)
        if _is_stale(snapshot, node, environment) and not _is_used(snapshot.jobs, node, environment)
    ]


def _jobs_by_environment(snapshot: Snapshot) -> dict[str, Job]:
    """The first job with each environment, of those that may be placed."""
    job_by_environment: dict[str, Job] = {}
    for name in sorted(snapshot.jobs):
        job = snapshot.jobs[name]
        environment = job.spec.environment
        if environment and environment not in job_by_environment and _may_be_placed(job):
            job_by_environment[environment] = job
    return job_by_environment


def _is_up(snapshot: Snapshot, name: NodeId) -> bool:
    """Does the server answer, and is it not drained?"""
    node = snapshot.nodes.get(name)
    return node is not None and node.state is NodeState.UP and name not in snapshot.drained


def _may_be_placed(job: Job) -> bool:
    return job.wish is DesiredState.RUN and (job.state is JobState.PENDING or job.movable)


def _is_stale(snapshot: Snapshot, node: NodeId, environment: str) -> bool:
    fitness = snapshot.checks.get((node, environment))
    if fitness is None:
        return True
    age = snapshot.now - fitness.at
    return not 0 <= age < (FIT_FOR if fitness.fit else UNFIT_FOR)


def _is_used(jobs: Mapping[JobId, Job], node: NodeId, environment: str) -> bool:
    """Is a part of a job with this environment on the server?"""
    return any(
        job.spec.environment == environment and node in _nodes(job)
        for job in jobs.values()
        if job.placement is not None
    )


def _nodes(job: Job) -> Iterator[NodeId]:
    over = {name for name, _ in job.exits}
    return (name for name, _ in job.parts if name not in over)


def folded(checks: Checks, event: EnvironmentSeen, jobs: Mapping[JobId, Job]) -> Checks:
    """What is known after the news. A running job proves more than a failed check."""
    if not event.fit and _is_used(jobs, event.node, event.environment):
        return checks
    findings = {
        **checks,
        (event.node, event.environment): Fitness(event.fit, event.reason, event.fix, event.at),
    }
    if len(findings) > MANY:
        live_environments = {job.spec.environment for job in jobs.values()}
        findings = {
            key: fitness
            for key, fitness in findings.items()
            if key[1] in live_environments or event.at - fitness.at < KEPT
        }
    return findings


def hopeful(checks: Checks, environment: str) -> Checks:
    """What is known after a submission: the user may have fixed what was missing. Often the same
    object."""
    unfit_keys = {
        key for key, fitness in checks.items() if key[1] == environment and not fitness.fit
    }
    if not unfit_keys:
        return checks
    return {key: fitness for key, fitness in checks.items() if key not in unfit_keys}


def without(checks: Checks, node: NodeId, jobs: Mapping[JobId, Job]) -> Checks:
    """What is known after a server was removed: only what jobs still running there prove."""
    return {
        key: fitness for key, fitness in checks.items() if key[0] != node or _is_used(jobs, *key)
    }


def recalled(snapshot: Snapshot) -> Snapshot:
    """The snapshot of an earlier daemon. Of its findings only those count that its jobs prove."""
    checks = dict(snapshot.checks)
    for _, job in sorted(snapshot.jobs.items()):
        if job.state in HOLDS_DEVICES and job.spec.environment:
            for node in _nodes(job):
                checks[node, job.spec.environment] = Fitness(
                    True, at=job.launched_at or snapshot.now
                )
    return replace(snapshot, checks=checks) if checks else snapshot


def unasked(spec: JobSpec) -> JobSpec:
    """The specification as if every server had what the job needs, to find out whether the job
    waits for that."""
    return replace(spec, environment="")


def obstacles(snapshot: Snapshot, job: Job) -> list[str]:
    """A line for each answering server that gpq does not use for the job."""
    lines = []
    for name in sorted(snapshot.nodes):
        fitness = snapshot.checks.get((name, job.spec.environment))
        if not _is_up(snapshot, name) or not job.spec.environment:
            continue
        if fitness is None:
            what = "its setup and its environment are" if job.spec.setup else "its environment is"
            lines.append(f"server {name}: {what} being checked")
        elif not fitness.fit:
            lines.append(
                f"server {name}: {fitness.reason} (seen {max(snapshot.now - fitness.at, 0.0):.0f} s"
                " ago)"
            )
    return lines


def headline(snapshot: Snapshot, job: Job) -> str:
    """The headline for a job that waits only for its environment."""
    findings = [
        snapshot.checks.get((name, job.spec.environment)) for name in sorted(snapshot.nodes)
    ]
    reasons = {fitness.reason for fitness in findings if fitness is not None and not fitness.fit}
    if any(fitness is None for fitness in _asked(snapshot, job)):
        if job.spec.setup:
            return "gpq is running its setup"
        return "gpq is checking its environment"
    if len(reasons) == 1:
        return f"no server fits: {reasons.pop()}"
    return "no server has its environment"


def _asked(snapshot: Snapshot, job: Job) -> Iterator[Fitness | None]:
    return (
        snapshot.checks.get((name, job.spec.environment))
        for name in sorted(snapshot.nodes)
        if _is_up(snapshot, name)
    )


def fixes(snapshot: Snapshot, job: Job) -> list[str]:
    """What would fix it, each fix once, and when gpq checks again."""
    unfit = [
        fitness
        for name in sorted(snapshot.nodes)
        if (fitness := snapshot.checks.get((name, job.spec.environment))) is not None
        and not fitness.fit
    ]
    repairs = list(dict.fromkeys(fitness.fix for fitness in unfit if fitness.fix))
    if not unfit:
        return []
    return [*repairs, f"gpq checks again every {UNFIT_FOR:.0f} s"]
