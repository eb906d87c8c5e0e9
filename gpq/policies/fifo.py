"""First come, first served: the order of submission, the fewest GPUs a job asked for, no overtaking, no moving."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.models import HOLDS_DEVICES, DeviceId, JobId, JobState, NodeId, Shape, Snapshot
from gpq.core.shapes import feasible, held_by, shape_on, supply


class Fifo:
    """Each waiting job gets its smallest feasible shape, in the order of priority, then submission; the first that does
    not fit stops the queue. What runs keeps what it has."""

    name = "fifo"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        allocation: dict[JobId, Shape] = {}
        taken: dict[tuple[NodeId, DeviceId], JobId] = held_by(snapshot)
        for name in sorted(snapshot.jobs):
            job = snapshot.jobs[name]
            if job.state in HOLDS_DEVICES and job.placement is not None:
                allocation[name] = shape_on(job.placement, snapshot)
        waiting = [job for job in snapshot.jobs.values() if job.state is JobState.PENDING]
        for job in sorted(waiting, key=lambda job: (-job.spec.priority, job.submitted_at, job.id)):
            if snapshot.now < job.not_before:
                continue
            if not feasible(job, snapshot, supply(snapshot, job, {})):
                continue  # it fits nowhere, ever: it must not block the others
            free = supply(snapshot, job, taken)
            shapes = feasible(job, snapshot, free)
            if not shapes:
                break
            allocation[job.id] = shapes[0]
            for node, devices in sorted(free.items(), key=lambda item: (len(item[1]), item[0])):
                if len(devices) >= shapes[0].replicas:
                    taken.update(((node, device), job.id) for device in devices[: shapes[0].replicas])
                    break
            else:
                taken.update(((node, device), job.id) for node, devices in free.items() for device in devices)
        return allocation
