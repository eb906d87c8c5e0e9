"""Optimus (EuroSys'18), as in Pollux's artifact: the next GPU goes where it saves the most time."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.greedy import Gain, allot
from gpq.policies.shared.sizing import Contender, entrants
from gpq.policies.shared.step_speeds import remaining_steps, step_seconds


class Optimus:
    """First every job gets its minimum, in the order of submission. Then one GPU at a time goes to
    the job with the largest (T(K) - T(K+1)) Q, as long as a job gains. T is the time of a step at
    the job's own batch size, Q the number of steps that it has left.

    A job that keeps its number of GPUs is not moved. The cost of a restart does not count, as in
    the paper.
    """

    name = "optimus"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)
        gains = {c.job.id: _gain(c, snapshot) for c in round_.contenders}
        return allot(snapshot, round_.fixed_shapes, round_.contenders, gains)


def _gain(contender: Contender, snapshot: Snapshot) -> Gain:
    oracle = snapshot.oracles.get(contender.job.id)
    steps, seconds = remaining_steps(contender.job, oracle), step_seconds(contender, oracle)

    def gain(replicas: int) -> float:
        current, faster = seconds(replicas), seconds(replicas + 1)
        if current is None or faster is None:
            return 0.0
        return (current - faster) * steps

    return gain
