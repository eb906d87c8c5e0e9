"""What keeps a waiting job behind a gate, and what would open the gate."""

from __future__ import annotations

from gpq.core.explain.reasons import JobReasons, Reason, reason
from gpq.core.feasibility.gates import array_limit, array_of, closed, halted, may_be_gated
from gpq.core.model.jobs import HOLDS_DEVICES, Dependency, Job, On
from gpq.core.model.snapshot import Snapshot

_CODES = {
    On.OK: "waits-for-success",
    On.NOTOK: "waits-for-failure",
    On.ANY: "waits-for-end",
}


def behind_gate(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """The whole answer about the gate that keeps `job` waiting. None if there is no such gate."""
    headline = closed(snapshot).get(job.id) if may_be_gated(job) else None
    if headline is None:
        return None
    reasons = [_awaited(snapshot, dependency) for dependency in job.awaits]
    remedies = []
    if job.awaits and job.id in halted(snapshot):
        remedies.append(reason("requeue-chain"))
    if job.awaits:
        remedies.append(reason("edit-after", job=job.id))
    wait = job.spec.begin - snapshot.now
    if wait > 0:
        reasons.append(reason("begins-later", wait=wait))
        remedies.append(reason("edit-begin", job=job.id))
    if not reasons and job.spec.seat is not None:
        reasons.append(_full_array(snapshot, job))
        remedies.append(reason("edit-array-limit", array=array_of(job), limit=array_limit(job) + 1))
    code = f"gate-{_gate(snapshot, job)}"
    return JobReasons(reason(code, line=headline), tuple(reasons), tuple(remedies))


def _gate(snapshot: Snapshot, job: Job) -> str:
    if job.unmet:
        return "unmet"
    if job.awaits:
        return "after"
    if job.spec.begin > snapshot.now:
        return "begin"
    return "array"


def _awaited(snapshot: Snapshot, dependency: Dependency) -> Reason:
    prerequisite = snapshot.jobs.get(dependency.job)
    facts = (
        f" ({prerequisite.name or prerequisite.spec.argv[0]}, {prerequisite.state})"
        if prerequisite is not None
        else ""
    )
    return reason(_CODES[dependency.on], job=dependency.job, facts=facts)


def _full_array(snapshot: Snapshot, job: Job) -> Reason:
    array = array_of(job)
    count = sum(
        sibling.state in HOLDS_DEVICES and array_of(sibling) == array
        for sibling in snapshot.jobs.values()
    )
    return reason("array-full", count=count, array=array, limit=array_limit(job))
