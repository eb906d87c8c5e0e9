"""Gavel (OSDI'20): shares of time on every GPU type, optimal for one of four objectives, which
rounds of gangs approach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpq.core.feasibility.shapes import shape_now
from gpq.core.model.jobs import Allotment
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.policies.gavel.demand import Demand, demands
from gpq.policies.gavel.time_shares import Ledger, Programme, Shares
from gpq.policies.shared.eligible import contest
from gpq.policies.shared.packing import pack_in_turns
from gpq.policies.shared.type_transfer import inform

# as published: sharing time means restarts, which would use up shorter turns
ROUND: Seconds = 360.0


class Gavel:
    """The most throughput, summed over jobs. Each gang has exactly the GPUs that it asked for, of
    one type.

    A round lasts `interval`, at least ROUND. Running jobs stay until it ends, and GPUs that become
    free go to the next job.
    """

    name = "gavel"

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._round_at: Seconds | None = None

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        snapshot = inform(snapshot)
        round_ = contest(snapshot)
        self._ledger.credit(snapshot)
        gangs = self._ledger.whole(demands(snapshot, round_.jobs, round_.parts))
        if not gangs:
            return dict(round_.fixed_shapes)
        shares = self._shares(Programme(gangs, round_.capacity))
        return pack_in_turns(snapshot, round_, self._order(snapshot, gangs, shares))

    def _shares(self, programme: Programme) -> Shares:
        return programme.most_throughput()

    def _order(
        self, snapshot: Snapshot, gangs: Sequence[Demand], shares: Shares
    ) -> list[tuple[JobId, Shape]]:
        """Seating order: jobs in the middle of their round first, then by X / f, X, and their
        present place."""
        length, now = max(snapshot.config.interval, ROUND), snapshot.now
        begins = self._round_at is None or not self._round_at <= now < self._round_at + length * (
            1.0 - 1e-9
        )
        if begins:
            self._round_at = now
        priority = self._ledger.priority(shares, length)
        keys: dict[tuple[JobId, str], tuple[float, ...]] = {}
        for demand in gangs:
            job = snapshot.jobs[demand.job]
            shape = shape_now(job, snapshot)
            for kind, speed in demand.speeds.items():
                stays = shape is not None and (shape.replicas, shape.gpu_type) == (
                    demand.gpus,
                    kind,
                )
                share = shares[job.id][kind]
                rank = (
                    -priority[job.id, kind],
                    -share,
                    not stays,
                    -job.spec.priority,
                    job.submitted_at,
                    -speed,
                )
                keys[job.id, kind] = (begins or not stays, *rank)
        shapes = {demand.job: demand.shapes for demand in gangs}
        return [
            (name, shapes[name][kind])
            for name, kind in sorted(keys, key=lambda key: (keys[key], key))
        ]


class GavelMaxMin(Gavel):
    """Max-min fairness: the job with the least throughput, relative to an equal share of every
    type, gets as much as possible."""

    name = "gavel-max-min"

    def _shares(self, programme: Programme) -> Shares:
        return programme.max_min_fairness()


class GavelFtf(Gavel):
    """Minimises the worst finish-time fairness (the measure of Themis, without its auction)."""

    name = "gavel-ftf"

    def _shares(self, programme: Programme) -> Shares:
        return programme.finish_time_fairness()


class GavelMakespan(Gavel):
    """The last job ends as early as possible."""

    name = "gavel-makespan"

    def _shares(self, programme: Programme) -> Shares:
        return programme.least_makespan()
