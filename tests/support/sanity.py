"""Invariants that hold between rounds."""

from __future__ import annotations

from gpq.core.feasibility.mobility import held_by
from gpq.core.model.jobs import HOLDS_DEVICES
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


def sanity(snapshot: Snapshot) -> list[str]:
    """Those that are broken, as sentences."""
    violations: list[str] = []
    owners: dict[object, JobId] = {}
    for job in snapshot.jobs.values():
        if (job.placement is not None) != (job.state in HOLDS_DEVICES):
            violations.append(f"job {job.id} is {job.state} and holds {job.placement}")
        for device in job.placement.devices if job.placement else ():
            if device in owners:
                violations.append(f"{device} is given to job {owners[device]} and to job {job.id}")
            owners[device] = job.id
    if len(held_by(snapshot)) != len(owners):
        violations.append("held_by disagrees with the placements")
    return violations
