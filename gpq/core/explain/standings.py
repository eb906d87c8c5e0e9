"""How users stand with each other: who holds more than their floor, when another gets theirs, and
for which jobs nobody may borrow. Nothing is said while a single user has something to run."""

from __future__ import annotations

import math
from collections import Counter

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
    floor = floors_now(snapshot).get(job.spec.user)
    if floor is None or job.spec.background:
        return []
    within, facts = _within(floor), {"user": job.spec.user, "floor": floor.total}
    if borrowed := borrowed_gpus(floor):
        held = floor.held.total()
        return [reason("user-borrows", gpus=held, borrowed=borrowed, **facts)]
    if within < floor.total:
        return [reason("user-below-floor", gpus=within, **facts)]
    return []


def of_waiting(snapshot: Snapshot, job: Job) -> list[Reason]:
    """Who holds more than their floor, and when the user of the job gets theirs."""
    floors = floors_now(snapshot)
    if job.spec.user not in floors or job.spec.background:
        return []
    reasons = []
    for user, floor in floors.items():
        held, borrowed = floor.held.total(), borrowed_gpus(floor)
        if borrowed and user != job.spec.user:
            facts = {"user": user, "gpus": held, "borrowed": borrowed, "floor": floor.total}
            reasons.append(reason("rival-borrows", **facts))
    return [*reasons, _own(snapshot, job, floors[job.spec.user])]


def _within(floor: Floor) -> int:
    """GPUs of the floor that its user holds."""
    return sum(min(floor.held[kind], count) for kind, count in floor.gpus.items())


def _own(snapshot: Snapshot, job: Job, floor: Floor) -> Reason:
    user, within = job.spec.user, _within(floor)
    facts: dict[str, object] = {"user": user, "gpus": within, "floor": floor.total}
    if within == floor.total:
        return reason("floor-full", user=user, gpus=floor.held.total(), floor=floor.total)
    config, short = snapshot.config, snapshot.standings.get(user, NO_DEBT).short
    if not short:
        return reason("floor-part", **facts)
    if short >= config.floor_patience:
        return reason("floor-due", **facts)
    graces = (rival.spec.grace for rival in snapshot.holders if rival.spec.user != user)
    latest = snapshot.standings_at + config.floor_patience - short + config.interval
    wait = max(latest - snapshot.now, 0.0) + max(graces, default=0.0)
    wait = MINUTE * math.ceil(wait / MINUTE)
    return reason("floor-later", since=short, wait=wait, **facts)


def beyond_floor(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """Its user would have to borrow GPUs for it that it could not give back."""
    snapshot = without_gated(snapshot)
    floors = floors_of(snapshot)
    types = types_within_floors(snapshot, floors)
    if types.get(job.id, "") is not None:
        return None
    user, config = job.spec.user, snapshot.config
    devices = {
        (node.id, device.id): device for node in nodes_up(snapshot) for device in node.devices
    }
    rivals = [
        rival
        for rival in snapshot.jobs.values()
        if rival.spec.user == user and not gives_back(rival, config)
    ]
    taken: Counter[str] = Counter()
    for rival in rivals:
        if rival.placement is not None:
            place = min(rival.placement.devices)
            taken[devices[place].type if place in devices else ""] += rival.replicas
        elif arrival(rival) < arrival(job):
            taken[types.get(rival.id) or ""] += rival.spec.min_gpus
    room = Counter(floors[user].gpus) + floors[user].reserved
    suited = sorted({device.type for device in devices.values() if suits(device, job.spec)})
    best = max(suited, key=lambda kind: room[kind] - taken[kind], default="")
    kind = f" of type {best}" if is_mixed(snapshot) else ""
    limit = reason("beyond-floor", user=user, floor=room[best], kind=kind, taken=taken[best])
    remedies = [reason("edit-to-borrow", job=job.id, limit=config.borrow_limit)]
    runners = sorted(rival.id for rival in rivals if rival.placement is not None)
    if runners and job.spec.min_gpus <= room[best]:
        remedies.insert(0, reason("wait-for-end", jobs=runners))
    return JobReasons(reason("waits-for-gpus"), (limit,), tuple(remedies))
