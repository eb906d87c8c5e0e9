"""The policy of a daemon in a team: each job gets the devices that the arbiter granted. If the
arbiter is silent, nothing stops, and jobs start on what is free up to the member's floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpq.core.answers import fault
from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import is_mixed, shape_on
from gpq.core.model.jobs import Allotment, DesiredState, Job
from gpq.core.model.placements import Layout, Placement
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.team.claims import Parts
from gpq.core.team.grants import VALID, Term
from gpq.policies.shared.eligible import waiting
from gpq.policies.shared.gangs import Seats

SILENCE: Seconds = 60.0  # of the arbiter, after which the daemon decides by itself


class TeamPolicy(Policy):
    """`latest` gives the newest answer that was checked. `shares`: does anything start while the
    arbiter is silent?"""

    name = "team"

    def __init__(self, latest: Callable[[], Term], *, shares: bool = True) -> None:
        self._latest = latest
        self._shares = shares

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        term = self._latest()
        if snapshot.now - term.at > SILENCE:
            return self._alone(snapshot, term.floor)
        allotments: dict[JobId, Allotment] = {}
        for job in snapshot.holders:
            claim, parts = term.claims.get(job.id), term.grants.get(job.id, ())
            is_answered = claim is not None and (claim.attempt, claim.parts) == (
                job.attempt,
                job.parts,
            )
            if job.wish is not DesiredState.RUN or is_fixed(job, snapshot) or not is_answered:
                parts = job.parts
            if parts and job.placement is not None:
                present = Layout.of(job.placement, shape_on(job.placement, snapshot).gpu_type)
                allotments[job.id] = _layout(job, parts, snapshot) or present
        if snapshot.now - term.at > VALID:
            return allotments
        for job in waiting(snapshot):
            claim, parts = term.claims.get(job.id), term.grants.get(job.id, ())
            if claim is None or parts == claim.parts:
                continue  # these it might keep, but it has given them back since
            if layout := _layout(job, parts, snapshot):
                allotments[job.id] = layout
        return allotments

    def _alone(self, snapshot: Snapshot, floor: int) -> Mapping[JobId, Allotment]:
        seats = Seats(snapshot, keep_running=True)
        room = floor - sum(job.replicas for job in snapshot.holders)
        for job in waiting(snapshot) if self._shares else ():
            if job.spec.min_gpus <= room and seats.admit(job):
                room -= job.spec.min_gpus
        return seats.allotments()


def _layout(job: Job, parts: Parts, snapshot: Snapshot) -> Layout | None:
    """Exactly these devices. None if the job may not have them now."""
    try:
        placement = Placement(tuple(sorted(parts)))
    except ValueError:  # a server or a device twice, or a server without devices
        return None
    types = {
        (node.id, device.id): device.type
        for node in snapshot.nodes.values()
        for device in node.devices
    }
    if not parts or not types.keys() >= placement.devices:
        return None
    node, ids = placement.parts[0]
    layout = Layout.of(placement, types[node, ids[0]] if is_mixed(snapshot) else "")
    return None if fault({job.id: layout}, snapshot) else layout
