"""Where a job's environment exists: what servers reported, which ones to ask, and which ones a job
may use. Pure.

`JobSpec.environment` identifies an environment. It is a digest of interpreter, working directory,
setup, modules and `early` variables, and "" asks for nothing. gpq does not use a server that it has
not asked yet, or that lacks the environment. A server where a part of a job with the same
environment runs has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from gpq.core.feasibility.mobility import UNKNOWN
from gpq.core.feasibility.shapes import UNASKED, Checks, suits
from gpq.core.model.actions import Prepare
from gpq.core.model.events import EnvironmentSeen
from gpq.core.model.jobs import DesiredState, Job, JobSpec, JobState
from gpq.core.model.nodes import Fitness, NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.outward import SECRET

# gpq checks a fit environment again after this time, if a job may still be placed there
FIT_FOR: Seconds = 600.0
UNFIT_FOR: Seconds = 30.0  # and an unfit one after this time: the user may have fixed it
KEPT: Seconds = 3600.0  # findings about environments that no job asks for any more
MANY = 1000  # gpq drops those findings if there are more than this

# by how they begin: variables by which an interpreter finds modules
LEADS_TO_MODULES = (
    *("PATH", "PYTHON", "LD_", "VIRTUAL_ENV", "CONDA_"),
    # of a site with `module`
    *("BASH_ENV", "BASH_FUNC_", "LMOD_", "LOADEDMODULES", "MODULEPATH", "MODULESHOME"),
)


def early(
    env: Iterable[tuple[str, str]], prefixes: tuple[str, ...] = LEADS_TO_MODULES
) -> list[tuple[str, str]]:
    """The variables of a job that a server may know before the job starts there, sorted. All others
    go to no other server than that."""
    return sorted(
        pair for pair in env if pair[0].startswith(prefixes) and not SECRET.search(pair[0])
    )


def checks_due(snapshot: Snapshot, only: NodeId | None = None) -> list[Prepare]:
    """What servers that answer must check now: each environment of jobs that may be placed there,
    once per server."""
    # the first job with each environment and need of devices
    jobs: dict[tuple[object, ...], Job] = {}
    for _, job in sorted(snapshot.jobs.items()):
        spec = job.spec
        may_be_placed = job.state is JobState.PENDING or job.movable
        if spec.environment and job.wish is DesiredState.RUN and may_be_placed:
            needs = spec.gpu_type, spec.min_gpu_memory_mib, spec.min_gpus > 1
            jobs.setdefault((spec.environment, *needs), job)
    looks: dict[tuple[NodeId, str], Prepare] = {}
    for name in filter(partial(_is_up, snapshot), [only] if only else sorted(snapshot.nodes)):
        for job in jobs.values():
            key = name, job.spec.environment
            fitness = snapshot.checks.get(key, UNASKED)
            is_fresh = 0 <= snapshot.now - fitness.at < (FIT_FOR if fitness.fit else UNFIT_FOR)
            if not is_fresh and key not in looks and _may_serve(snapshot, name, job):
                looks[key] = Prepare(*key, job.spec)
    return [looks[key] for key in sorted(looks) if not _is_used(snapshot.jobs, *key)]


def _may_serve(snapshot: Snapshot, name: NodeId, job: Job) -> bool:
    """Has the server a device for it, whatever its state?"""
    return any(suits(device, job.spec) for device in snapshot.nodes[name].devices)


def _is_up(snapshot: Snapshot, name: NodeId) -> bool:
    """Does the server answer, and is it not drained?"""
    node = snapshot.nodes.get(name, UNKNOWN)
    return node.state is NodeState.UP and name not in snapshot.drained


def _is_used(jobs: Mapping[JobId, Job], node: NodeId, environment: str) -> bool:
    """Is a part of a job with this environment on the server?"""
    return any(job.spec.environment == environment and node in _nodes(job) for job in jobs.values())


def _nodes(job: Job) -> list[NodeId]:
    over = dict(job.exits)
    return [name for name in job.nodes if name not in over]


def fold(checks: Checks, event: EnvironmentSeen, jobs: Mapping[JobId, Job]) -> Checks:
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
    fit = {key: check for key, check in checks.items() if key[1] != environment or check.fit}
    return fit if len(fit) < len(checks) else checks


def without(checks: Checks, node: NodeId, jobs: Mapping[JobId, Job]) -> Checks:
    """What is known after a server was removed: only what jobs still running there prove."""
    return {
        key: fitness for key, fitness in checks.items() if key[0] != node or _is_used(jobs, *key)
    }


def recall(snapshot: Snapshot) -> Snapshot:
    """The snapshot of an earlier daemon. Of its findings only those count that its jobs prove."""
    checks = dict(snapshot.checks)
    for job in snapshot.holders:
        if job.spec.environment:
            for node in _nodes(job):
                fit = Fitness(True, at=job.launched_at or snapshot.now)
                checks[node, job.spec.environment] = fit
    return replace(snapshot, checks=checks)


def without_environment(spec: JobSpec) -> JobSpec:
    """The specification as if every server had what the job needs, to find out whether the job
    waits for that."""
    return spec.having(environment="")


def obstacles(snapshot: Snapshot, job: Job) -> list[str]:
    """A line for each answering server that gpq does not use for the job."""
    lines: list[str] = []
    if not job.spec.environment:
        return lines
    for name, fitness in _answers(snapshot, job).items():
        if fitness is None:
            what = "its setup and its environment are" if job.spec.setup else "its environment is"
            lines.append(f"server {name}: {what} being checked")
        elif not fitness.fit:
            age = max(snapshot.now - fitness.at, 0.0)
            lines.append(f"server {name}: {fitness.reason} (seen {age:.0f} s ago)")
    return lines


def _answers(snapshot: Snapshot, job: Job) -> dict[NodeId, Fitness | None]:
    """What each answering server with a device for it says. None: it is being checked."""
    return {
        name: snapshot.checks.get((name, job.spec.environment))
        for name in sorted(snapshot.nodes)
        if _is_up(snapshot, name) and _may_serve(snapshot, name, job)
    }


def _unfit(snapshot: Snapshot, job: Job) -> list[Fitness]:
    """The findings against servers, by their names."""
    findings = (
        snapshot.checks.get((name, job.spec.environment)) for name in sorted(snapshot.nodes)
    )
    return [fitness for fitness in findings if fitness is not None and not fitness.fit]


def headline(snapshot: Snapshot, job: Job) -> str:
    """The headline for a job that waits only for its environment."""
    if None in _answers(snapshot, job).values():
        if job.spec.setup:
            return "gpq is running its setup"
        return "gpq is checking its environment"
    reasons = {fitness.reason for fitness in _unfit(snapshot, job)}
    if len(reasons) == 1:
        return f"no server fits: {reasons.pop()}"
    return "no server has its environment"


def fixes(snapshot: Snapshot, job: Job) -> list[str]:
    """What would fix it, each fix once, and when gpq checks again."""
    unfit = _unfit(snapshot, job)
    if not unfit:
        return []
    repairs = filter(None, dict.fromkeys(fitness.fix for fitness in unfit))
    return [*repairs, f"gpq checks again every {UNFIT_FOR:.0f} s"]
