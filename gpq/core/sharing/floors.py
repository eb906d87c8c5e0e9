"""Floors: the GPUs that a user gets whenever their jobs can use them.

Of each GPU type, a floor is the part by weight of a user among all who have something to run, in
whole GPUs. It is a count of devices, so no report of a job can change it. Floors add up to all
GPUs, so to give one user a `part` of their own never makes the floor of another impossible.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from gpq.core.accounting.fairness import active
from gpq.core.feasibility.mobility import held_by, is_fixed
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.feasibility.shapes import DeviceKind, kind_of, nodes_up, supply
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import DesiredState, Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, NodeId, Seconds

PERIOD: Seconds = 3600.0  # in which each user has their turn with a GPU that does not divide evenly
LEAST_TURN: Seconds = 900.0  # on average. With shorter ones, the period is longer
NO_DEBT = Standing()

Place = tuple[NodeId, DeviceId]


@dataclass(slots=True)
class Floor:
    """What is due to one user. By GPU type: the `entitlement`, which need not be whole, the GPUs of
    the floor, what the user's jobs hold, and what is `reserved` for the user besides the floor.
    `fixed` are devices that they cannot give back now, and `reach` other devices that suit them,
    whoever holds these."""

    reach: set[Place]
    entitlement: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    holdings: Counter[str] = field(default_factory=Counter)
    reserved: Counter[str] = field(default_factory=Counter)
    fixed: dict[Place, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.gpus.values())

    @property
    def borrowed(self) -> float:
        """GPUs held beyond the entitlement."""
        return sum(
            max(count - self.entitlement.get(kind, 0.0), 0.0)
            for kind, count in self.holdings.items()
        )


def stays(job: Job, snapshot: Snapshot) -> bool:
    """Does it keep its devices in this round, whatever a policy says?"""
    return job.placement is not None and (
        job.wish is not DesiredState.RUN or is_fixed(job, snapshot)
    )


def floors_of(snapshot: Snapshot) -> dict[str, Floor]:
    """By user with something to run. Empty unless there are several such users and users count.

    GPUs that cannot be given back now count against the floor of their user first. If these are
    more than an equal part, the others divide what is left. `snapshot` is without jobs behind
    gates.
    """
    jobs = _jobs_by_user(snapshot)
    config = snapshot.config
    if len(jobs) < 2 or not (config.by_user and config.floors):
        return {}
    floors = {user: Floor(reach) for user, reach in _reach(snapshot, jobs).items()}
    pool = _pool(snapshot, floors)
    weights = dict(config.user_weights)
    for kind in sorted(set(pool.values())):
        size = sum(gpu_type == kind for gpu_type in pool.values())
        fixed = {
            user: sum(gpu_type == kind for gpu_type in floor.fixed.values())
            for user, floor in floors.items()
        }
        rivals = {
            user: weights.get(user, 1.0)
            for user, floor in floors.items()
            if fixed[user] or any(pool[place] == kind for place in floor.reach)
        }
        entitlements = _entitlements(size, rivals, fixed)
        for user, entitlement in entitlements.items():
            floors[user].entitlement[kind] = entitlement
        counts = _whole(size, rivals, entitlements, config.floor_patience, snapshot.now)
        for user, count in counts.items():
            floors[user].gpus[kind] = count
    return floors


def _jobs_by_user(snapshot: Snapshot) -> dict[str, list[Job]]:
    jobs: dict[str, list[Job]] = defaultdict(list)
    for job in active(snapshot):
        if job.wish is DesiredState.RUN:
            jobs[job.spec.user].append(job)
    return dict(sorted(jobs.items()))


def _reach(snapshot: Snapshot, jobs: Mapping[str, list[Job]]) -> dict[str, set[Place]]:
    """The devices that suit some job of each user, whoever holds them now."""
    places: dict[DeviceKind, set[Place]] = {}
    reach: dict[str, set[Place]] = {}
    for user, own in jobs.items():
        kinds = {kind_of(job, snapshot): job for job in own}
        for kind, job in kinds.items():
            if kind not in places:
                devices = supply(snapshot, job, {})
                places[kind] = {(node, device) for node, ids in devices.items() for device in ids}
        reach[user] = set().union(*(places[kind] for kind in kinds))
    return reach


def _pool(snapshot: Snapshot, floors: Mapping[str, Floor]) -> dict[Place, str]:
    """The devices to divide, with their types. Counts on the way what each user holds and keeps.

    Neither reserved devices, nor those that a job of somebody without a floor keeps."""
    holders = held_by(snapshot)
    useful = set().union(*(floor.reach for floor in floors.values()))
    reserved = {
        (reservation.node, device): reservation.user
        for reservation in current(snapshot, snapshot.now)
        if reservation.start <= snapshot.now
        for device in devices_of(reservation, snapshot.nodes.get(reservation.node))
    }
    pool: dict[Place, str] = {}
    for node in nodes_up(snapshot):
        for device in node.devices:
            place = node.id, device.id
            if place in reserved and reserved[place] in floors:
                floors[reserved[place]].reserved[device.type] += 1
            job = snapshot.jobs[holders[place]] if place in holders else None
            owner = None
            if job is not None and not job.spec.background:
                owner = floors.get(job.spec.user)
            if owner is not None:
                owner.holdings[device.type] += 1
            if job is None or not stays(job, snapshot):
                if place in useful and place not in reserved:
                    pool[place] = device.type
            elif owner is not None:
                pool[place] = owner.fixed[place] = device.type
    movable = pool.keys() - {place for floor in floors.values() for place in floor.fixed}
    for floor in floors.values():
        floor.reach &= movable
    return pool


def _entitlements(
    size: int, weights: Mapping[str, float], fixed: Mapping[str, int]
) -> dict[str, float]:
    """Parts of `size` GPUs by weight. Who cannot give back more than that has just this."""
    entitlements: dict[str, float] = {}
    rivals, left = dict(weights), float(size)
    while rivals:
        unit = max(left, 0.0) / sum(rivals.values())
        above = [user for user, weight in rivals.items() if fixed[user] > weight * unit]
        if not above:
            return {**entitlements, **{user: weight * unit for user, weight in rivals.items()}}
        for user in above:
            entitlements[user] = float(fixed[user])
            left -= fixed[user]
            del rivals[user]
    return entitlements


def _whole(
    size: int,
    weights: Mapping[str, float],
    entitlements: Mapping[str, float],
    patience: Seconds,
    now: Seconds,
) -> dict[str, int]:
    """Whole GPUs. Users take turns with the `spare` ones that do not divide evenly. In each period
    a user has one more for as much of the time as the remainder of their share says.

    Shares lie one after the other on a line, and each turn begins where a share begins, modulo 1.
    So as many turns overlap as GPUs are spare. What somebody cannot give back moves no turn."""
    counts = {user: int(share + 1e-9) for user, share in entitlements.items()}
    remainders = {user: share - counts[user] for user, share in entitlements.items()}
    total = sum(weights.values())
    shares = {user: size * weight / total for user, weight in weights.items()}
    spare = size - sum(int(share + 1e-9) for share in shares.values())
    users, fewest = len(shares), max(min(spare, len(shares) - spare), 1)
    phase = now / max(PERIOD, max(LEAST_TURN, 1.5 * patience) * users / fewest)
    begin, ranks = 0.0, {}
    for user, share in shares.items():
        if remainders[user] > 1e-9:  # below 1 during the turn
            ranks[user] = (phase - begin) % 1.0 / remainders[user]
        begin += share if spare else 1.0 / users
    for user in sorted(ranks, key=ranks.__getitem__)[: size - sum(counts.values())]:
        counts[user] += 1
    return counts


def part_of(
    snapshot: Snapshot,
    user: str,
    floor: Floor,
    taken: Set[Place] = frozenset(),
    *,
    whole_jobs: bool = False,
) -> set[Place]:
    """Devices for a floor, none of them among `taken`: what the user keeps, then as many as
    possible of one server after the other. With `whole_jobs`, first the devices of jobs that fit
    into it, the largest first, so that these need not move."""
    part = set(floor.fixed)
    types = {
        (node.id, device.id): device.type
        for node in snapshot.nodes.values()
        for device in node.devices
    }
    missing = Counter(floor.gpus)
    missing.subtract(floor.fixed.values())
    holders = {place: snapshot.jobs[name].spec.user for place, name in held_by(snapshot).items()}
    if whole_jobs:
        for job in sorted(snapshot.holders, key=lambda job: (-job.replicas, job.id)):
            if job.spec.user == user and job.placement is not None:
                places = job.placement.devices
                kind = types.get(min(places), "")
                if places <= floor.reach - taken and job.replicas <= missing[kind]:
                    part |= places
                    missing[kind] -= job.replicas
    for kind, count in missing.items():
        servers: dict[NodeId, list[Place]] = defaultdict(list)
        for place in sorted(floor.reach - taken - part):
            if types[place] == kind:
                servers[place[0]].append(place)
        while count > 0 and servers:
            ranks = {name: _rank(places, count, user, holders) for name, places in servers.items()}
            chosen = servers.pop(min(ranks, key=ranks.__getitem__))
            chosen.sort(key=lambda place: (holders.get(place) != user, place in holders))
            part.update(chosen[:count])
            count -= len(chosen[:count])
    return part


def _rank(
    places: Sequence[Place], missing: int, user: str, holders: Mapping[Place, str]
) -> tuple[int, int, int, int, Place]:
    """Of a server with these devices, the lowest first."""
    own = sum(holders.get(place) == user for place in places)
    occupied = sum(place in holders for place in places) - own
    return -min(len(places), missing), -min(own, missing), occupied, len(places), places[0]
