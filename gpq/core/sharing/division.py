"""divide(): any policy decides for everybody, and no user stays below their floor for it.

First the policy decides on all GPUs. Each user is then compared with the best that their jobs could
do on a part of their floor's size alone, by their own reports. Who is short for longer than
`Config.floor_patience`, or gets nothing at all, is given such a part, the shortest first, and the
policy decides again on the rest.

What a user holds beyond their floor is borrowed. Only jobs that can give it back may borrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpq.core.answers import ask
from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.mobility import FIRST_TIMES, UNKNOWN, as_waiting
from gpq.core.feasibility.shapes import (
    DeviceKind,
    gpu_range,
    is_mixed,
    kind_of,
    nodes_up,
    shape_on,
    suits,
)
from gpq.core.goodput import estimates
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import ANY_NUMBER, Allotment, Job, arrival
from gpq.core.model.placements import Layout, Placement
from gpq.core.model.policy import Policy, shape_of
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.placement import place
from gpq.core.sharing.floors import NO_DEBT, Floor, Place, floors_of, part_of, stays

ENOUGH = 0.98  # of what a user's jobs could do on their part
HALF_LIFE: Seconds = 86_400.0  # in which half of a debt is forgotten
LEAST_DEBT = 1.0  # GPU-seconds

Jobs = Mapping[JobId, Job]
Answer = tuple[dict[JobId, Allotment], dict[JobId, Placement]]


@dataclass(frozen=True, slots=True)
class Division:
    """What the jobs get and where, and how their users then stand with each other."""

    allotments: Mapping[JobId, Allotment]
    placements: Mapping[JobId, Placement]
    standings: Mapping[str, Standing]
    # GPUs of the floors of the users who are given them although the policy decided otherwise
    secured: Mapping[str, int] = field(default_factory=dict)


def divide(snapshot: Snapshot, policy: Policy, background: Jobs | None = None) -> Division:
    """`snapshot` is what the policy may see. `background`: other jobs, whose devices count as
    free."""
    floors, background = floors_of(snapshot), background or {}
    debts = _debts(snapshot, floors)
    if not floors:
        return Division(*_ask(policy, snapshot, background), _standings(debts, {}))
    level = _within_floors(_levelled(snapshot, floors), floors)
    best = {}
    for user, floor in floors.items():
        part = _anew(_alone(level, user, part_of(level, user, floor)))
        best[user] = _utility(level, _ask(policy.aside(user), part, background)[1])
    proposal = _ask(policy, level, background)
    allotments, placements = proposal
    shortfalls = ratios = _shortfalls(level, placements, best)
    patience = snapshot.config.floor_patience
    short = {  # for how long the policy has left users so
        user: snapshot.standings.get(user, NO_DEBT).short + _counted(snapshot) for user in ratios
    }
    secured: dict[str, Answer] = {}
    first: set[str] = set()  # those to whom others left no part as good as it could be
    # Who is worse off because others were secured need not wait: those who borrowed give way.
    while claims := [
        user
        for user, ratio in ratios.items()
        if not ratio or ratio < shortfalls.get(user, 1.0) or short[user] >= patience
    ]:
        user = min(claims, key=lambda name: (name not in first, ratios[name], name))
        taken = _devices(secured.values())
        secured[user] = _secure(level, policy, user, floors[user], taken, best[user], background)
        is_good = _utility(level, secured[user][1]) >= ENOUGH * best[user]
        if taken and not is_good and user not in first:  # they choose before the others
            first.add(user)
            secured.clear()
            (allotments, placements), ratios = proposal, shortfalls
            continue
        if user in short:
            short[user] = patience  # no second wait while the policy would take it away again
        allotments, placements = _ask(
            policy.aside(""), _beside(level, secured.values()), background
        )
        rivals = {name: best[name] for name in best.keys() - secured.keys()}
        ratios = _shortfalls(level, placements, rivals)
    allotments, placements = dict(allotments), dict(placements)
    for own_allotments, own_placements in secured.values():
        allotments.update(own_allotments)
        placements.update(own_placements)
    for user in secured:
        _widen(level, policy, user, background, (allotments, placements))
    if secured:  # a part of the GPUs may have one type, and its shapes then name none
        allotments |= {name: shape_on(where, snapshot) for name, where in placements.items()}
    secured_gpus = {user: floors[user].total for user in secured}
    return Division(allotments, placements, _standings(debts, short), secured_gpus)


def on_recall(snapshot: Snapshot) -> Snapshot:
    """Who borrows gives back at once to somebody who has a floor and holds nothing. So until then
    the newest jobs on borrowed GPUs count as settled."""
    config = snapshot.config
    floors = floors_of(replace(snapshot, config=replace(config, settle_seconds=0.0)))
    hungry = {job.spec.user for job in snapshot.jobs.values() if may_start(snapshot, job)}
    if all(floors[user].holdings or not floors[user].total for user in hungry & floors.keys()):
        return snapshot
    surplus = {user: floor.holdings.total() - floor.total for user, floor in floors.items()}
    jobs = dict(snapshot.jobs)
    for job in sorted(snapshot.holders, key=lambda job: -(job.started_at or 0.0)):
        if job.started_at and surplus.get(job.spec.user, 0) > 0:
            surplus[job.spec.user] -= job.replicas
            settled_since = snapshot.now - FIRST_TIMES * config.settle_seconds
            jobs[job.id] = replace(job, started_at=min(job.started_at, settled_since))
    return replace(snapshot, jobs=jobs)


def _secure(
    snapshot: Snapshot,
    policy: Policy,
    user: str,
    floor: Floor,
    taken: set[Place],
    best: float,
    background: Jobs,
) -> Answer:
    """The user's jobs on a part of the floor without `taken`, where they are if that is as good."""
    instance = policy.aside(user)
    places = part_of(snapshot, user, floor, taken, whole_jobs=True)
    answer = _ask(instance, _alone(snapshot, user, places), background)
    if _utility(snapshot, answer[1]) >= ENOUGH * best:
        return answer
    places = part_of(snapshot, user, floor, taken)
    return _ask(instance, _anew(_alone(snapshot, user, places)), background)


def _widen(snapshot: Snapshot, policy: Policy, user: str, background: Jobs, answer: Answer) -> None:
    """Give the user also what nobody else can use, if the policy makes more of that. Changes
    `answer`."""
    allotments, placements = answer
    places = {(node.id, device.id) for node in nodes_up(snapshot) for device in node.devices}
    free = places - _devices([answer])
    if not free:
        return
    jobs = _jobs_of(snapshot, user)
    own = {name: placement for name, placement in placements.items() if name in jobs}
    part = _alone(snapshot, user, free | _devices([({}, own)]))
    wider_allotments, wider_placements = _ask(policy.aside(user), part, background)
    if _utility(snapshot, wider_placements) * ENOUGH > _utility(snapshot, own):
        for name in own:
            del placements[name]
            allotments.pop(name, None)  # a policy need not name a job that it may not move
        allotments.update(wider_allotments)
        placements.update(wider_placements)


def _ask(policy: Policy, snapshot: Snapshot, background: Jobs) -> Answer:
    """What the policy gives to whom, and where. Of equal places, jobs start where no background job
    has to leave, because they would have to wait for that."""
    allotments = dict(ask(policy, snapshot))
    if not background:
        return allotments, place(snapshot, allotments)
    everybody = replace(snapshot, jobs={**background, **snapshot.jobs})
    # A policy's own choice of servers ignores this, so it stays only if there is no other place, or
    # if it names the devices.
    shapes = {
        name: shape_of(wish)
        for name, wish in allotments.items()
        if snapshot.jobs[name].placement is None and not (isinstance(wish, Layout) and wish.devices)
    }
    placements = place(everybody, {**allotments, **shapes})
    if not placements.keys() >= allotments.keys():
        placements = place(everybody, allotments)
    return allotments, placements


def _levelled(snapshot: Snapshot, floors: Collection[str]) -> Snapshot:
    """The highest priority of each user is 0. Priorities order a user's jobs, never users."""
    tops: dict[str, int] = {}
    for job in snapshot.jobs.values():
        user, priority = job.spec.user, job.spec.priority
        tops[user] = max(tops.get(user, priority), priority)
    jobs = dict(snapshot.jobs)
    for name, job in snapshot.jobs.items():
        top = tops[job.spec.user]
        if top and job.spec.user in floors:
            jobs[name] = replace(job, spec=job.spec.having(priority=job.spec.priority - top))
    return replace(snapshot, jobs=jobs)


def gives_back(job: Job, config: Config) -> bool:
    """Can its GPUs be had back soon, because gpq can stop it or because it ends? A script that has
    not declared itself yet may never do so."""
    limit = job.spec.time_limit
    ends = limit is not None and limit - job.run_seconds <= config.borrow_limit
    return ends or job.movable or job.spec.background


def types_within_floors(snapshot: Snapshot, floors: Mapping[str, Floor]) -> dict[JobId, str | None]:
    """For each waiting job that could not give its GPUs back: the type of which the floor of its
    user has most room for it. None: it must wait, because its user may not borrow for it."""
    config = snapshot.config
    room = {user: Counter(floor.gpus) + floor.reserved for user, floor in floors.items()}
    waiting_jobs = []
    for job in sorted(snapshot.jobs.values(), key=arrival):
        if job.spec.user not in floors or gives_back(job, config):
            continue
        if job.placement is not None:
            room[job.spec.user][type_on(job.placement, snapshot)] -= job.replicas
        elif may_start(snapshot, job):
            waiting_jobs.append(job)
    types: dict[JobId, str | None] = {}
    suited: dict[DeviceKind, list[str]] = {}
    for job in waiting_jobs:
        wish = kind_of(job, snapshot)
        if wish not in suited:
            suited[wish] = suited_types(job, snapshot)
        own = room[job.spec.user]
        options = [kind for kind in suited[wish] if own[kind] >= job.spec.min_gpus]
        types[job.id] = max(options, key=lambda kind: own[kind], default=None)
        own.subtract({kind: job.spec.min_gpus for kind in options if kind == types[job.id]})
    return types


def suited_types(job: Job, snapshot: Snapshot) -> list[str]:
    """The types of GPU that a job could use if they were in order, sorted."""
    devices = (device for node in nodes_up(snapshot) for device in node.devices)
    return sorted({device.type for device in devices if suits(device, job.spec)})


def type_on(placement: Placement, snapshot: Snapshot) -> str:
    """The type of its devices, "" if its server no longer has them."""
    node, ids = placement.parts[0]
    devices = snapshot.nodes.get(node, UNKNOWN).devices
    return next((device.type for device in devices if device.id == ids[0]), "")


def _within_floors(snapshot: Snapshot, floors: Mapping[str, Floor]) -> Snapshot:
    """Without the jobs for which their user would have to borrow GPUs that do not come back."""
    jobs = dict(snapshot.jobs)
    for name, kind in types_within_floors(snapshot, floors).items():
        if kind is None:
            del jobs[name]
        elif is_mixed(snapshot):
            jobs[name] = replace(jobs[name], spec=jobs[name].spec.having(gpu_type=kind))
    return replace(snapshot, jobs=jobs)


def _jobs_of(snapshot: Snapshot, user: str) -> dict[JobId, Job]:
    return {
        name: job
        for name, job in snapshot.jobs.items()
        if job.spec.user == user and not job.spec.background
    }


def _shortfalls(
    snapshot: Snapshot, placements: Mapping[JobId, Placement], best: Mapping[str, float]
) -> dict[str, float]:
    """By user who is short, the part of the `best` utility that these placements give."""
    ratios = {}
    for user, most in best.items():
        names = placements.keys() & _jobs_of(snapshot, user).keys()
        utility = _utility(snapshot, {name: placements[name] for name in sorted(names)})
        if utility < ENOUGH * most:
            ratios[user] = utility / most
    return ratios


def _alone(snapshot: Snapshot, user: str, places: set[Place]) -> Snapshot:
    """One user's jobs on these devices."""
    return _confined(snapshot, _jobs_of(snapshot, user), places)


def _anew(snapshot: Snapshot) -> Snapshot:
    """As if all jobs that can leave their devices had to start."""
    jobs = {
        name: job if stays(job, snapshot) else replace(as_waiting(job), target=None)
        for name, job in snapshot.jobs.items()
    }
    return replace(snapshot, jobs=jobs)


def _beside(snapshot: Snapshot, secured: Collection[Answer]) -> Snapshot:
    """All jobs but the secured ones, on the devices that these leave."""
    names = {name for _, placements in secured for name in placements}
    places = {(node.id, device.id) for node in snapshot.nodes.values() for device in node.devices}
    jobs = {name: job for name, job in snapshot.jobs.items() if name not in names}
    return _confined(snapshot, jobs, places - _devices(secured))


def _devices(answers: Iterable[Answer]) -> set[Place]:
    return {
        place
        for _, placements in answers
        for placement in placements.values()
        for place in placement.devices
    }


def _confined(snapshot: Snapshot, jobs: Jobs, places: set[Place]) -> Snapshot:
    """These jobs on these devices. Who holds others and can leave them counts as waiting."""
    nodes = {
        name: replace(node, devices=tuple(d for d in node.devices if (name, d.id) in places))
        for name, node in snapshot.nodes.items()
    }
    confined = {
        name: job
        if job.placement is None or stays(job, snapshot) or job.placement.devices <= places
        else as_waiting(job)
        for name, job in jobs.items()
    }
    return replace(snapshot, nodes=nodes, jobs=confined)


def _could_use_more(snapshot: Snapshot, job: Job, floor: Floor) -> bool:
    """Does its user hold less than the entitlement, and does this job wait or could it grow?"""
    if floor.holdings.total() >= sum(floor.entitlement.values()):
        return False
    if job.placement is None:
        return may_start(snapshot, job)
    return job.replicas < gpu_range(job, ANY_NUMBER)[1]


def _utility(snapshot: Snapshot, placements: Mapping[JobId, Placement]) -> float:
    """The sum of the jobs' goodputs, each in goodputs of one GPU by what the job reports. Who
    reports nothing counts as if it scaled perfectly."""
    requests = []
    for name, placement in placements.items():
        job, shape = snapshot.jobs[name], shape_on(placement, snapshot)
        fewest = replace(shape, replicas=job.spec.min_gpus, nodes=1)
        requests.append((job, (fewest, shape)))
    utility = 0.0
    for (job, (_, shape)), table in zip(requests, estimates.tables(requests), strict=True):
        speedup = float(shape.replicas)
        if table is not None and table.goodput[0] > 0:
            speedup = job.spec.min_gpus * float(table.goodput[1] / table.goodput[0])
        utility += speedup
    return utility


def _counted(snapshot: Snapshot) -> Seconds:
    """The time since the last round, as far as anybody knows what was held in it."""
    if not snapshot.standings_at:
        return 0.0
    return min(max(snapshot.now - snapshot.standings_at, 0.0), snapshot.config.interval)


def _debts(snapshot: Snapshot, floors: Mapping[str, Floor]) -> dict[str, float]:
    """GPU-seconds by user, up to now. A debt grows by what its user holds beyond their entitlement
    while another user could use more and has less than theirs, and halves every day."""
    hungry = {
        job.spec.user
        for job in snapshot.jobs.values()
        if job.spec.user in floors and _could_use_more(snapshot, job, floors[job.spec.user])
    }
    remainder = 0.5 ** (max(snapshot.now - snapshot.standings_at, 0.0) / HALF_LIFE)
    debts = {user: standing.debt * remainder for user, standing in snapshot.standings.items()}
    for user, floor in floors.items():
        if hungry - {user}:
            debts[user] = debts.get(user, 0.0) + floor.borrowed * _counted(snapshot)
    return debts


def _standings(debts: Mapping[str, float], short: Mapping[str, Seconds]) -> dict[str, Standing]:
    """Without users who owe next to nothing and are at their floors."""
    return {
        user: Standing(debts.get(user, 0.0), short.get(user, 0.0))
        for user in sorted(debts.keys() | short.keys())
        if debts.get(user, 0.0) >= LEAST_DEBT or user in short
    }
