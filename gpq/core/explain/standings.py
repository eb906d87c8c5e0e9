"""How users stand with each other: who holds more than their floor, when another gets theirs, and
for which jobs nobody may borrow. Nothing is said while a single user has something to run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from gpq.core.explain.obstacles import JobReasons, Reason, reason
from gpq.core.feasibility.gates import without_gated
from gpq.core.feasibility.shapes import is_mixed, nodes_up, suits
from gpq.core.model.jobs import Job, arrival
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds
from gpq.core.sharing.division import gives_back, types_within_floors
from gpq.core.sharing.floors import NO_DEBT, Floor, floors_of

MINUTE: Seconds = 60.0


def floors_now(snapshot: Snapshot) -> dict[str, Floor]:
    """By user, for a snapshot with all live jobs."""
    return floors_of(without_gated(snapshot))


def borrowed_gpus(floor: Floor) -> int:
    """Whole GPUs that its user holds beyond the floor."""
    return (floor.held - Counter(floor.gpus) - floor.reserved).total()


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
    own = floors.pop(job.spec.user)
    lines = [line for user, floor in floors.items() for line in _borrowing(user, floor)]
    return [*lines, _own(snapshot, job.spec.user, own)]


def _borrowing(user: str, floor: Floor) -> list[Reason]:
    held, borrowed = floor.held.total(), borrowed_gpus(floor)
    if not borrowed:
        return []
    return [reason("user-borrows", user=user, gpus=held, borrowed=borrowed, floor=floor.total)]


def _within(floor: Floor) -> int:
    """GPUs of the floor that its user holds."""
    return sum(min(floor.held[kind], count) for kind, count in floor.gpus.items())


def _own(snapshot: Snapshot, user: str, floor: Floor) -> Reason:
    total, within = floor.total, _within(floor)
    if within == total:
        return reason("floor-full", user=user, gpus=floor.held.total(), floor=total)
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
    snapshot = without_gated(snapshot)
    user, config, floors = job.spec.user, snapshot.config, floors_of(snapshot)
    rivals = {
        name: rival
        for name, rival in snapshot.jobs.items()
        if rival.spec.user == user
        and (rival.placement is not None or arrival(rival) <= arrival(job))
        and not gives_back(rival, config)
    }
    types = types_within_floors(replace(snapshot, jobs=rivals), floors)
    if types.get(job.id, "") is not None:
        return None
    devices = {
        (node.id, device.id): device for node in nodes_up(snapshot) for device in node.devices
    }
    taken: Counter[str] = Counter()
    for name, rival in rivals.items():
        if rival.placement is not None:
            place = min(rival.placement.devices)
            taken[devices[place].type if place in devices else ""] += rival.replicas
        elif kind := types.get(name):
            taken[kind] += rival.spec.min_gpus
    room = Counter(floors[user].gpus) + floors[user].reserved
    suited = sorted({device.type for device in devices.values() if suits(device, job.spec)})
    best = max(suited, key=lambda kind: room[kind] - taken[kind], default="")
    kind = f" of type {best}" if is_mixed(snapshot) else ""
    limit = reason("beyond-floor", user=user, floor=room[best], kind=kind, taken=taken[best])
    remedies = [reason("edit-to-borrow", job=job.id, limit=config.borrow_limit)]
    runners = sorted(name for name, rival in rivals.items() if rival.placement is not None)
    if runners and job.spec.min_gpus <= room[best]:
        remedies.insert(0, reason("wait-for-end", jobs=runners))
    return JobReasons(reason("waits-for-gpus"), (limit,), tuple(remedies))
