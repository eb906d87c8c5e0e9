"""Gavel (OSDI'20): shares of time on every GPU type, optimal for one of four objectives, approached in rounds of gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpq.core.demand import Demand, demands
from gpq.core.models import Allotment, JobId, Seconds, Shape, Snapshot
from gpq.core.timeshares import Ledger, Programme, Shares
from gpq.core.transfer import informed
from gpq.core.vacancies import Contest, contest, current, pack


class Gavel:
    """The most throughput, summed over jobs. Each gang has exactly the GPUs that it asked for, of one type.

    A round lasts `interval`; until its end who runs stays, and what becomes free goes to the next in order.
    """

    name = "gavel"

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._round_at: Seconds | None = None

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        here = informed(snapshot)
        round_ = contest(here)
        self._ledger.credit(here)
        asked = self._ledger.whole(demands(here, round_.jobs, round_.parts))
        if not asked:
            return dict(round_.kept)
        shares = self._shares(Programme(asked, round_.capacity))
        return _seat(here, round_, asked, self._order(here, asked, shares))

    def _shares(self, programme: Programme) -> Shares:
        return programme.most_throughput()

    def _order(self, snapshot: Snapshot, asked: Sequence[Demand], shares: Shares) -> list[tuple[JobId, str]]:
        """(job, type), the first to be seated first: those in the middle of their round, then by X / f, X, where it is."""
        interval, now = snapshot.config.interval, snapshot.now
        begins = self._round_at is None or not self._round_at <= now < self._round_at + interval * (1.0 - 1e-9)
        if begins:
            self._round_at = now
        priority = self._ledger.priority(shares, interval)
        keys: dict[tuple[JobId, str], tuple[float, ...]] = {}
        for demand in asked:
            job = snapshot.jobs[demand.job]
            shape = current(job, snapshot)
            for kind, speed in demand.speeds.items():
                stays = shape is not None and (shape.replicas, shape.gpu_type) == (demand.gpus, kind)
                share = shares[job.id][kind]
                rank = (-priority[job.id, kind], -share, not stays, -job.spec.priority, job.submitted_at, -speed)
                keys[job.id, kind] = (begins or not stays, *rank)
        return sorted(keys, key=lambda key: (keys[key], key))


def _seat(
    snapshot: Snapshot, round_: Contest, asked: Sequence[Demand], order: Sequence[tuple[JobId, str]]
) -> dict[JobId, Allotment]:
    """Each in its turn on the type of its turn while devices are left; who finds no nodes there is passed over."""
    shapes = {demand.job: demand.shapes for demand in asked}
    passed: set[tuple[JobId, str]] = set()
    while True:
        left, wanted = dict(round_.capacity), dict[JobId, Shape]()
        for name, kind in order:
            shape = shapes[name][kind]
            if name not in wanted and (name, kind) not in passed and shape.replicas <= left[kind]:
                wanted[name] = shape
                left[kind] -= shape.replicas
        found = pack(snapshot, round_.kept, wanted, loose=True)
        lost = [(name, kind) for name, kind in order if name in wanted and name not in found]
        lost = [(name, kind) for name, kind in lost if wanted[name].gpu_type == kind]
        if not lost:
            return found
        passed.add(lost[-1])


class GavelMaxMin(Gavel):
    """Max-min fairness: the job with the least throughput, relative to an equal share of every type, has the most."""

    name = "gavel-max-min"

    def _shares(self, programme: Programme) -> Shares:
        return programme.max_min_fairness()


class GavelFtf(Gavel):
    """The worst finish-time fairness is the least (Themis' measure, without its auction)."""

    name = "gavel-ftf"

    def _shares(self, programme: Programme) -> Shares:
        return programme.finish_time_fairness()


class GavelMakespan(Gavel):
    """The last of the jobs ends soonest."""

    name = "gavel-makespan"

    def _shares(self, programme: Programme) -> Shares:
        return programme.least_makespan()
