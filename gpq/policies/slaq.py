"""SLAQ (SoCC'17): GPUs go to the jobs whose loss falls fastest, so that the quality over all jobs
rises soonest."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared import loss_curve
from gpq.policies.shared.greedy import Gain, allot
from gpq.policies.shared.sizing import Contender, entrants
from gpq.policies.shared.step_speeds import step_seconds, steps_done


class Slaq:
    """First every job gets its minimum, jobs with the fastest falling loss first. Then one GPU at a
    time goes to the job whose loss it lowers most until the next round. The unit is the largest
    change of that job's loss so far.

    A job without a loss curve counts as if its whole loss could still fall, so new jobs come first.
    Jobs that have nearly converged get little, by design. The cost of a restart does not count.
    """

    name = "slaq"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)
        falls = {c.job.id: _fall(c, snapshot) for c in round_.contenders}
        order = sorted(
            round_.contenders,
            key=lambda c: (-c.job.spec.priority, -falls[c.job.id](c.least) / c.least),
        )
        return allot(
            snapshot,
            round_.fixed_shapes,
            order,
            {name: _gain(fall) for name, fall in falls.items()},
        )


def _fall(contender: Contender, snapshot: Snapshot) -> Gain:
    """The share of its loss that this many GPUs remove in a round. Without a curve k / (k + 1), as
    if one GPU removed half of it."""
    job = contender.job
    curve = loss_curve.fit(job.profile.losses)
    seconds, steps = step_seconds(contender, snapshot.oracles.get(job.id)), steps_done(job)

    def fall(replicas: int) -> float:
        if curve is None:
            return replicas / (replicas + 1.0)
        step = seconds(replicas)
        if step is None:
            return 0.0
        return curve.gain(steps, snapshot.config.interval / step)

    return fall


def _gain(fall: Gain) -> Gain:
    return lambda replicas: fall(replicas + 1) - fall(replicas)
