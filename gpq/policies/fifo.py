"""First come, first served: each job gets the GPUs that it asked for, in the order of submission.
No job overtakes another, and none moves."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import waiting
from gpq.policies.shared.gangs import Seats


class Fifo(Policy):
    """Each waiting job gets its gang, by priority, then submission. The first one that does not fit
    stops the queue. Running jobs keep what they have. A job that can never fit blocks nobody."""

    name = "fifo"
    sentence = "first come, first served, without overtaking"
    gang = True
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        seats = Seats(snapshot, keep_running=True)
        for job in waiting(snapshot):
            if not seats.admit(job) and seats.could_ever(job):
                break
        return seats.allotments()
