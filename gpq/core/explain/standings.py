"""How users stand with each other: who holds more than their floor, when another gets theirs, and
for which jobs nobody may borrow. Nothing is said while a single user has something to run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpq.core.explain.obstacles import JobReasons, Reason, reason
from gpq.core.feasibility.gates import without_gated
from gpq.core.feasibility.shapes import is_mixed
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.sharing.division import gives_back, suited_types, type_on, types_within_floors
from gpq.core.sharing.floors import NO_DEBT, Floor, floors_of

MINUTE: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class _Look:
    """Values that many jobs ask of one snapshot. `types`: of waiting jobs that cannot give GPUs
    back (`types_within_floors`). `taken`: by user and type, the GPUs of such jobs."""

    snapshot: Snapshot
    floors: Mapping[str, Floor]
    types: Mapping[JobId, str | None]
    taken: Mapping[str, Counter[str]]


_latest: list[_Look] = []  # of the last snapshot, which is replaced and never changed


def _look(snapshot: Snapshot) -> _Look:
    for look in _latest:
        if look.snapshot is snapshot:
            return look
    open_jobs = without_gated(snapshot)
    floors = floors_of(open_jobs)
    types = types_within_floors(open_jobs, floors)
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for job in open_jobs.jobs.values():
        kind = types.get(job.id)
        if job.placement is not None and not gives_back(job, snapshot.config):
            kind = type_on(job.placement, snapshot)
        if kind is not None:
            taken[job.spec.user][kind] += job.replicas or job.spec.min_gpus
    _latest[:] = [_Look(snapshot, floors, types, taken)]
    return _latest[0]


def floors_now(snapshot: Snapshot) -> Mapping[str, Floor]:
    """By user, for a snapshot with all live jobs."""
    return _look(snapshot).floors


def borrowed_gpus(floor: Floor) -> int:
    """Whole GPUs that its user holds beyond the floor."""
    return (floor.holdings - Counter(floor.gpus) - floor.reserved).total()


def of_running(snapshot: Snapshot, job: Job) -> list[Reason]:
    """How the user of a running job compares with their floor, unless they hold just that."""
    user, floor = job.spec.user, floors_now(snapshot).get(job.spec.user)
    if floor is None or job.spec.background:
        return []
    within = _within(floor)
    if within < floor.total:
        return [reason("floor-part", user=user, gpus=within, floor=floor.total)]
    return _borrowing(user, floor)


def of_waiting(snapshot: Snapshot, job: Job) -> list[Reason]:
    """Who holds more than their floor, and when the user of the job gets theirs."""
    floors = floors_now(snapshot)
    if job.spec.user not in floors or job.spec.background:
        return []
    lines = [
        line
        for user, floor in floors.items()
        if user != job.spec.user
        for line in _borrowing(user, floor)
    ]
    return [*lines, _own(snapshot, job.spec.user, floors[job.spec.user])]


def _borrowing(user: str, floor: Floor) -> list[Reason]:
    holdings, borrowed = floor.holdings.total(), borrowed_gpus(floor)
    if not borrowed:
        return []
    return [reason("user-borrows", user=user, gpus=holdings, borrowed=borrowed, floor=floor.total)]


def _within(floor: Floor) -> int:
    """GPUs of the floor that its user holds."""
    return sum(min(floor.holdings[kind], count) for kind, count in floor.gpus.items())


def _own(snapshot: Snapshot, user: str, floor: Floor) -> Reason:
    total, within = floor.total, _within(floor)
    if within == total:
        return reason("floor-full", user=user, gpus=floor.holdings.total(), floor=total)
    config, short = snapshot.config, snapshot.standings.get(user, NO_DEBT).short
    if not short:
        return reason("floor-part", user=user, gpus=within, floor=total)
    if short >= config.floor_patience:
        return reason("floor-due", user=user, gpus=within, floor=total)
    graces = (rival.spec.grace for rival in snapshot.holders if rival.spec.user != user)
    latest = snapshot.standings_at + config.floor_patience - short + config.interval
    wait = max(latest - snapshot.now, 0.0) + max(graces, default=0.0)
    wait = MINUTE * math.ceil(wait / MINUTE)
    return reason("floor-later", user=user, gpus=within, floor=total, since=short, wait=wait)


def beyond_floor(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """Its user would have to borrow GPUs for it that they could not give back."""
    look, user = _look(snapshot), job.spec.user
    if look.types.get(job.id, "") is not None:
        return None
    floor, taken = look.floors[user], look.taken[user]
    room = Counter(floor.gpus) + floor.reserved
    best = max(suited_types(job, snapshot), key=lambda kind: room[kind], default="")
    kind = f" of type {best}" if is_mixed(snapshot) else ""
    limit = reason("beyond-floor", user=user, floor=room[best], kind=kind, taken=taken[best])
    remedies = [reason("edit-to-borrow", job=job.id, limit=snapshot.config.borrow_limit)]
    runners = [
        holder.id
        for holder in snapshot.holders
        if holder.spec.user == user and not gives_back(holder, snapshot.config)
    ]
    if runners and job.spec.min_gpus <= room[best]:
        remedies.insert(0, reason("wait-for-end", jobs=runners))
    return JobReasons(reason("waits-for-gpus"), (limit,), tuple(remedies))
