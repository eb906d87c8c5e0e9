"""First come, first served: the order of submission, the GPUs a job asked for, no overtaking, no
moving."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import waiting
from gpq.policies.shared.gangs import Seats


class Fifo:
    """Each waiting job gets its gang, in the order of priority, then submission; the first that
    does not fit stops the queue. What runs keeps what it has. A job that fits nowhere, ever, blocks
    nobody."""

    name = "fifo"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        seats = Seats(snapshot, keep_running=True)
        for job in waiting(snapshot):
            if not seats.admit(job) and seats.could_ever(job):
                break
        return seats.allotments()
