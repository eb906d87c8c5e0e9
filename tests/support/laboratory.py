"""A laboratory without processes: members' daemons, each with its own loop of rounds, machines with locks, and an
arbiter between them. Time goes on in steps. Jobs train until they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpq.core.model.actions import Launch, Stop
from gpq.core.model.events import Event, Exited, NodeSeen, Started, StartRefused
from gpq.core.model.jobs import HOLDS_DEVICES, Job, JobSpec
from gpq.core.model.nodes import Device, DeviceState, Node, NodeState
from gpq.core.model.placements import Exit
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.rounds.rounds import decide, offer_of
from gpq.core.team.claims import Statement, statement
from gpq.core.team.grants import Grants, Term, flaw
from gpq.policies.team import TeamPolicy
from tests.support.builders import job

REPORT: Seconds = 3.0
Place = tuple[str, DeviceId]  # machine, device
Answer = Callable[[str, int, Statement], Grants | None]  # member, seq, what is told


@dataclass
class Member:
    """One user with a daemon. `servers`: own name -> machine."""

    name: str
    servers: Mapping[str, str]
    lab: Laboratory
    snapshot: Snapshot = field(
        default_factory=lambda: Snapshot(config=Config(floors=False, policy="team", settle_seconds=0.0))
    )
    term: Term = field(default_factory=lambda: Term(0.0))
    events: list[Event] = field(default_factory=list)
    seq: int = 0
    is_up: bool = True
    lie: Callable[[Statement], Statement] = lambda news: news
    refused: int = 0  # starts on devices that somebody else had locked

    def submit(self, spec: JobSpec, profile: Profile) -> JobId:
        name = JobId(self.snapshot.next_id)
        twin = job(name, at=self.lab.now, spec_=spec.having(user=self.name), profile=profile)
        jobs = {**self.snapshot.jobs, name: twin}
        self.snapshot = replace(self.snapshot, jobs=jobs, next_id=name + 1)
        return name

    def round(self) -> None:
        """The daemon's loop: what its agents see, then a round, then its orders."""
        now = self.lab.now
        seen: list[Event] = [NodeSeen(now, self._node(name)) for name in self.servers]
        events, self.events = [*self.events, *seen], []
        policy = TeamPolicy(lambda: self.term)
        decision = decide(replace(self.snapshot, now=now), events, policy, allocate=True)
        assert decision.round is not None
        assert not decision.round.fault, decision.round.fault
        self.snapshot = replace(
            decision.snapshot, jobs={name: self._with_speed(twin) for name, twin in decision.snapshot.jobs.items()}
        )
        for action in decision.actions:
            match action:
                case Launch():
                    self._launch(action)
                case Stop():
                    self._stop(action)

    def talk(self, answer: Answer) -> None:
        """Tell what there is, and take the grants."""
        news = statement(self.snapshot, offer_of(self.snapshot)[0])
        self.seq += 1
        grants = answer(self.name, self.seq, self.lie(news))
        if grants is None or grants.seq != self.seq:
            return
        problem = flaw(grants, news)
        if problem and self.lie(news) != news:
            return  # of a lie follows an answer that is of no use
        assert not problem, problem
        self.believe(grants, news)

    def believe(self, grants: Grants, news: Statement) -> None:
        claims = {claim.job: claim for claim in news.claims}
        parts = {grant.job: grant.parts for grant in grants.grants}
        self.term = Term(self.lab.now, parts, claims, grants.floor, dict(grants.why))

    def job(self, name: JobId) -> Job:
        return self.snapshot.jobs[name]

    @property
    def gpus(self) -> int:
        return sum(job.replicas for job in self.snapshot.holders)

    def _with_speed(self, twin: Job) -> Job:
        """A job reports its speed a moment after its start."""
        if twin.started_at is None or self.lab.now - twin.started_at < REPORT:
            return twin
        return replace(twin, profile=replace(twin.profile, samples_per_second=100.0))

    def _node(self, name: str) -> Node:
        machine = self.servers[name]
        devices = tuple(
            Device(device, index, "cuda", "A100", 40_000, self.lab.state(self.name, (machine, device)))
            for index, device in enumerate(self.lab.machines[machine])
        )
        return Node(NodeId(name), NodeState.UP, devices=devices, boot_id="boot", machine=machine)

    def _launch(self, action: Launch) -> None:
        now, places = self.lab.now, self._places(action.placement.parts)
        if any(place in self.lab.locks for place in places):
            self.refused += 1
            node = action.placement.parts[0][0]
            self.events.append(StartRefused(now, action.job, action.attempt, node, "taken", transient=True))
            return
        self.lab.locks |= dict.fromkeys(places, (self.name, action.job))
        self.events += [Started(now, action.job, action.attempt, node) for node, _ in action.placement.parts]

    def _stop(self, action: Stop) -> None:
        gone = {place for place, owner in self.lab.locks.items() if owner == (self.name, action.job)}
        for place in gone:
            del self.lab.locks[place]
        end = Exit(code=0, stopped=True, asked=action.mode)
        self.events += [Exited(self.lab.now, action.job, action.attempt, node, end) for node in action.nodes]

    def _places(self, parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]) -> list[Place]:
        return [(self.servers[node], device) for node, ids in parts for device in ids]


@dataclass
class Laboratory:
    """`machines`: name -> devices. `locks`: who has a device, whatever anybody says."""

    machines: Mapping[str, tuple[DeviceId, ...]]
    members: dict[str, Member] = field(default_factory=dict)
    locks: dict[Place, tuple[str, JobId]] = field(default_factory=dict)
    now: Seconds = 1000.0

    def join(self, name: str, servers: Mapping[str, str] | None = None) -> Member:
        """By default the member calls each machine by its name."""
        own = servers or {machine: machine for machine in self.machines}
        self.members[name] = Member(name, own, self)
        return self.members[name]

    def state(self, viewer: str, place: Place) -> DeviceState:
        owner = self.locks.get(place)
        return DeviceState.FOREIGN if owner is not None and owner[0] != viewer else DeviceState.OK

    def step(self, answer: Answer, seconds: Seconds = 1.0) -> None:
        """All daemons that are up do a round, and talk to the arbiter."""
        self.now += seconds
        for member in self.members.values():
            if member.is_up:
                member.round()
                member.talk(answer)
        self.check()

    def check(self) -> None:
        """What a job holds according to its daemon is locked for it, and nothing else is."""
        for member in self.members.values():
            for owner in member.snapshot.holders:
                assert owner.state in HOLDS_DEVICES
        owners = list(self.locks.values())
        for (machine, device), (name, number) in self.locks.items():
            assert device in self.machines[machine]
            assert (
                owners.count((name, number)) <= self.members[name].job(number).replicas or not self.members[name].is_up
            )


def machine(name: str, gpus: int) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(f"GPU-{name}-{index}") for index in range(gpus))
