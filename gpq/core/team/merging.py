"""merge(): one snapshot from what all members told, in which any policy can decide.

A machine that several members reach is one server, whatever they call it. Nobody's word costs
anybody else: a device that only one member has seen is reserved for them, and who says that a GPU
is broken or free says so for their own jobs.

grant(): from a round's placements to who may have which devices at once, and who must wait until
others have left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gpq.core.feasibility.mobility import as_waiting
from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.nodes import Device, DeviceState, Fitness, Node, NodeState, Reservation
from gpq.core.model.placements import Placement
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.team.claims import Claim, DeviceView, Parts, Statement, job_of
from gpq.core.team.grants import VALID, Grant

SILENCE: Seconds = 45.0  # after which a member's waiting jobs take no part
LAG: Seconds = 10.0  # for which a device that was given back may still look used to other agents
TRUST: Seconds = 60.0  # for which a holding that nobody granted counts, of a member who is new here
CHOICES = 4  # of a job that are remembered
REFUSAL: Seconds = 60.0  # for which a device is no choice for a member who did not start there

Place = tuple[NodeId, DeviceId]


@dataclass(frozen=True, slots=True)
class Report:
    """The latest statement of a member, heard at `at`."""

    statement: Statement
    seq: int
    at: Seconds

    def is_fresh(self, now: Seconds) -> bool:
        return now - self.at <= SILENCE

    def waiting(self, now: Seconds) -> int:
        """Jobs that take part and hold nothing."""
        claims, more = self.statement.claims, self.statement.more
        return more + sum(not claim.parts for claim in claims) if self.is_fresh(now) else 0


@dataclass(slots=True)
class Memory:
    """What the arbiter knows beyond the reports. None of it must outlive its process: all is told
    again within seconds."""

    ids: dict[tuple[str, JobId], JobId] = field(default_factory=dict)
    last_id: int = 0
    since: dict[str, Seconds] = field(default_factory=dict)  # the first report of each member
    # the last few placements that the arbiter chose, because a daemon may act on an older answer
    choices: dict[JobId, tuple[Placement, ...]] = field(default_factory=dict)
    starts: dict[JobId, Placement] = field(default_factory=dict)  # where jobs may start now
    # of jobs that wait: since when they have been able to start
    ready: dict[JobId, Seconds] = field(default_factory=dict)
    occupants: dict[Place, JobId] = field(default_factory=dict)
    releases: dict[Place, Seconds] = field(default_factory=dict)
    refusals: dict[tuple[str, Place], Seconds] = field(default_factory=dict)  # until then
    recalls: dict[tuple[str, JobId], Seconds] = field(default_factory=dict)  # until then

    def id_of(self, member: str, job: JobId) -> JobId:
        key = member, job
        if key not in self.ids:
            self.last_id += 1
            self.ids[key] = JobId(self.last_id)
        return self.ids[key]


@dataclass(frozen=True, slots=True)
class Team:
    """`snapshot` has every job that takes part. `claims` are all, with their members. `presence`
    says what each job holds, and `occupants` who has or is about to have a device."""

    snapshot: Snapshot
    claims: Mapping[JobId, tuple[str, Claim]]
    presence: Mapping[JobId, Placement]
    occupants: Mapping[Place, JobId]
    names: Mapping[tuple[str, NodeId], NodeId]  # what a member calls a server


@dataclass(frozen=True, slots=True)
class Sight:
    """How one member sees a device. `up`: their agent on its server answers."""

    device: DeviceView
    up: bool


@dataclass(slots=True)
class _Machines:
    """The servers of all. Views of admins come first."""

    nodes: dict[str, NodeId] = field(default_factory=dict)  # by machine
    names: dict[tuple[str, NodeId], NodeId] = field(default_factory=dict)
    own: dict[tuple[str, NodeId], NodeId] = field(default_factory=dict)  # by a member's own name
    sights: dict[Place, dict[str, Sight]] = field(default_factory=dict)

    def add(self, member: str, statement: Statement) -> None:
        for server in statement.servers:
            node = self.nodes.get(server.machine) or self._new_node(server.machine, server.name)
            if (member, node) in self.names or (member, server.name) in self.own:
                continue  # an honest daemon names a machine once
            self.names[member, node] = server.name
            self.own[member, server.name] = node
            for device in server.devices:
                sight = Sight(device, server.state is NodeState.UP)
                self.sights.setdefault((node, device.id), {})[member] = sight

    def _new_node(self, machine: str, name: NodeId) -> NodeId:
        names, number = {*self.nodes.values()}, 2
        node = name
        while node in names:
            node, number = NodeId(f"{name}-{number}"), number + 1
        self.nodes[machine] = node
        return node

    def placement(self, member: str, parts: Parts) -> Placement | None:
        """Where the member's `parts` are. None if they are nowhere."""
        named = sorted((self.own.get((member, server), NodeId("")), ids) for server, ids in parts)
        places = [(node, device) for node, ids in named for device in ids]
        if not places or not all(member in self.sights.get(place, ()) for place in places):
            return None
        try:
            return Placement(tuple(named), self.sights[places[0]][member].device.type)
        except ValueError:  # a server or a device twice, or a server without devices
            return None


def merge(
    reports: Mapping[str, Report],
    memory: Memory,
    config: Config,
    now: Seconds,
    *,
    admins: Collection[str] = (),
    paused: Collection[str] = (),
) -> Team:
    """`reports` by member. Changes `memory`."""
    machines = _Machines()
    for member in sorted(reports, key=lambda name: (name not in admins, name)):
        machines.add(member, reports[member].statement)
        memory.since.setdefault(member, now)
    fresh = {name for name in reports if reports[name].is_fresh(now) and name not in paused}
    claims = _claims(reports, memory)
    presence, occupants = _holdings(claims, machines, memory, fresh, now)
    starts = _starts(claims, occupants, memory, machines, fresh, now)
    for name, placement in starts.items():
        occupants |= dict.fromkeys(placement.devices, name)
    _note_releases(memory, occupants, now)
    quiet = occupants.keys() | memory.releases.keys()  # where it is known why agents see a use
    nodes = _nodes(machines, fresh, quiet)
    jobs: dict[JobId, Job] = {}
    checks: dict[tuple[NodeId, str], Fitness] = {}
    for name, (member, claim) in claims.items():
        takes_part = name in presence or (member in fresh and not claim.parts)
        if not takes_part or memory.recalls.get((member, claim.job), 0.0) > now:
            continue
        environment = ""
        if claim.servers:
            environment = f"{member} {' '.join(claim.servers)}"
            homes = (machines.own.get((member, server)) for server in claim.servers)
            checks |= {(node, environment): Fitness(True) for node in homes if node is not None}
        lag = reports[member].at - reports[member].statement.now
        job = job_of(claim, name, member, environment, presence.get(name), lag)
        if name in starts:
            job = replace(job, state=JobState.STARTING, placement=starts[name])
        elif claim.leaves:
            job = replace(as_waiting(job), target=None)
        if member not in fresh:  # nobody could move it
            job = replace(job, wish=DesiredState.HOLD)
        jobs[name] = job
    snapshot = Snapshot(
        now,
        config,
        nodes,
        jobs,
        checks=checks,
        reservations=_reservations(machines, admins),
        refusals={name: _refusals(name, machines, memory, quiet, now) for name in fresh},
    )
    memory.occupants = occupants
    return Team(snapshot, claims, presence, occupants, machines.names)


def _claims(reports: Mapping[str, Report], memory: Memory) -> dict[JobId, tuple[str, Claim]]:
    claims: dict[JobId, tuple[str, Claim]] = {}
    for member, report in sorted(reports.items()):
        for claim in report.statement.claims:
            claims.setdefault(memory.id_of(member, claim.job), (member, claim))
    memory.ids = {key: name for key, name in memory.ids.items() if name in claims}
    memory.choices = {name: last for name, last in memory.choices.items() if name in claims}
    memory.starts = {name: place for name, place in memory.starts.items() if name in claims}
    return claims


def _holdings(
    claims: Mapping[JobId, tuple[str, Claim]],
    machines: _Machines,
    memory: Memory,
    fresh: Collection[str],
    now: Seconds,
) -> tuple[dict[JobId, Placement], dict[Place, JobId]]:
    """The devices that jobs hold, and who holds each. What was granted counts before what another
    member's agent confirms."""
    presence: dict[JobId, Placement] = {}
    occupants: dict[Place, JobId] = {}
    ranks: list[tuple[bool, JobId, Placement]] = []
    for name, (member, claim) in claims.items():
        placement = machines.placement(member, claim.parts) if claim.parts else None
        if placement is None:
            continue
        is_granted = placement in memory.choices.get(name, ())
        is_trusted = now - memory.since[member] <= TRUST
        witnesses = (_is_confirmed(place, member, machines, fresh) for place in placement.devices)
        if is_granted or is_trusted or all(witnesses):
            ranks.append((not is_granted, name, placement))
    for _, name, placement in sorted(ranks, key=lambda rank: rank[:2]):
        if occupants.keys().isdisjoint(placement.devices):
            presence[name] = placement
            occupants |= dict.fromkeys(placement.devices, name)
    return presence, occupants


def _is_confirmed(place: Place, member: str, machines: _Machines, fresh: Collection[str]) -> bool:
    """Does another member's agent see that somebody uses it, or can no other tell?"""
    witnesses = [
        sight.device.state is not DeviceState.OK
        for name, sight in machines.sights[place].items()
        if name != member and name in fresh and sight.up
    ]
    return not witnesses or any(witnesses)


def _starts(
    claims: Mapping[JobId, tuple[str, Claim]],
    occupants: Mapping[Place, JobId],
    memory: Memory,
    machines: _Machines,
    fresh: Collection[str],
    now: Seconds,
) -> dict[JobId, Placement]:
    """The grants of jobs that have not started yet. They lapse after `VALID`, and the member then
    does not get these devices for a while, because something there keeps the job from starting."""
    starts = {}
    waiting = {name for name, (_, claim) in claims.items() if not claim.parts}
    memory.ready = {name: memory.ready.get(name, now) for name in memory.starts if name in waiting}
    for name, since in list(memory.ready.items()):
        member, _ = claims[name]
        placement = memory.starts[name]
        if not occupants.keys().isdisjoint(placement.devices):
            memory.ready[name] = now  # not yet: those who leave for it are still there
        elif member in fresh and now - since > VALID:
            del memory.starts[name], memory.ready[name]
            until = dict.fromkeys(((member, place) for place in placement.devices), now + REFUSAL)
            memory.refusals |= until
        elif member in fresh and machines.sights.keys() >= placement.devices:
            starts[name] = placement
    return starts


def _note_releases(memory: Memory, occupants: Mapping[Place, JobId], now: Seconds) -> None:
    freed = memory.occupants.keys() - occupants.keys()
    releases = {**memory.releases, **dict.fromkeys(freed, now)}
    memory.releases = {place: at for place, at in releases.items() if now - at <= LAG}
    memory.refusals = {key: until for key, until in memory.refusals.items() if until > now}
    memory.recalls = {key: until for key, until in memory.recalls.items() if until > now}


def _nodes(
    machines: _Machines, fresh: Collection[str], quiet: Collection[Place]
) -> dict[NodeId, Node]:
    devices: dict[NodeId, list[Device]] = {}
    answering: set[NodeId] = set()
    for (node, name), sights in machines.sights.items():
        views = [sight for member, sight in sights.items() if member in fresh and sight.up]
        if views:
            answering.add(node)
        view = views[0].device if views else next(iter(sights.values())).device
        state = view.state
        if (node, name) in quiet or any(s.device.state is DeviceState.OK for s in views):
            state = DeviceState.OK
        device = Device(name, view.index, view.kind, view.type, view.memory_mib, state)
        devices.setdefault(node, []).append(device)
    return {
        node: Node(
            node,
            NodeState.UP if node in answering else NodeState.UNREACHABLE,
            devices=tuple(sorted(devices[node], key=lambda device: (device.index, device.id))),
        )
        for node in sorted(devices)
    }


def _reservations(machines: _Machines, admins: Collection[str]) -> dict[int, Reservation]:
    """Devices that one member alone has seen are that member's, unless it is an admin's."""
    lone: dict[tuple[NodeId, str], list[DeviceId]] = {}
    for (node, device), sights in machines.sights.items():
        if len(sights) == 1 and not sights.keys() & set(admins):
            lone.setdefault((node, next(iter(sights))), []).append(device)
    return {
        number: Reservation(number, node, 0.0, float("inf"), tuple(devices), member)
        for number, ((node, member), devices) in enumerate(sorted(lone.items()), 1)
    }


def _refusals(
    member: str, machines: _Machines, memory: Memory, quiet: Collection[Place], now: Seconds
) -> frozenset[Place]:
    """The devices that the member's own agents do not have, or could not use now."""

    def refuses(place: Place) -> bool:
        sight = machines.sights[place].get(member)
        if sight is None or not sight.up or (member, place) in memory.refusals:
            return True
        return sight.device.state is not DeviceState.OK and place not in quiet

    return frozenset(filter(refuses, machines.sights))


def grant(
    team: Team, placements: Mapping[JobId, Placement], movers: set[JobId], memory: Memory
) -> dict[str, tuple[Grant, ...]]:
    """By member. A job in `movers` may leave for its new place. Others stay until theirs is free.
    Changes `memory`."""
    occupants, starts = dict(team.occupants), dict[JobId, Placement]()
    grants: dict[str, list[Grant]] = {}
    for name, (member, claim) in team.claims.items():
        present, target = team.presence.get(name), placements.get(name)
        if claim.parts and present is None:  # a holding that does not count stays its own affair
            grants.setdefault(member, []).append(Grant(claim.job, claim.parts))
            continue
        if target is None or name not in team.snapshot.jobs:
            continue
        if present is None:
            if any(occupants.get(place, name) != name for place in target.devices):
                continue
            occupants |= dict.fromkeys(target.devices, name)
        elif name not in movers:
            target = present
        if target != present:
            starts[name] = target
            choices = (*memory.choices.get(name, ()), target)
            memory.choices[name] = tuple(dict.fromkeys(choices))[-CHOICES:]
        grants.setdefault(member, []).append(Grant(claim.job, _parts(team, member, target)))
    memory.starts = starts
    return {member: tuple(own) for member, own in grants.items()}


def _parts(team: Team, member: str, placement: Placement) -> Parts:
    """As the member calls the servers."""
    parts = ((team.names[member, node], ids) for node, ids in placement.parts)
    return tuple(sorted(parts))
