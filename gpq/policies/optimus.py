"""Optimus (EuroSys'18) as Pollux's artifact has it: the next GPU to the job that it brings nearest
to its end."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.model.jobs import Allotment
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.greedy import Gain, allot
from gpq.policies.shared.sizing import Contender, entrants
from gpq.policies.shared.step_speeds import remaining_steps, step_seconds


class Optimus:
    """Everybody's least first, in the order of submission; then one GPU at a time to the largest
    (T(K) - T(K+1)) Q, T the time of a step of the job's own batch, Q the steps that it has left, as
    long as anybody gains.

    A job whose count stays is not moved; what a restart costs is not considered (published so).
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
