"""Teams of users who share GPUs round after round, some of whom lie. What a job really makes of its GPUs is kept apart
from what it reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import numpy as np

from gpq.core.feasibility.mobility import held_by
from gpq.core.goodput import goodput as gp
from gpq.core.goodput.estimates import tables
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Declared, Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.placement import place
from gpq.core.rounds.rounds import allocate_for
from gpq.policies.registry import policy
from tests.support.builders import black_box, job, node, spec

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))  # servers and replicas
BATCHES = (16, 64, 128)
PARAMS = gp.ThroughputParams(0.05, 0.01, 0.3, 0.01, 0.05, 0.005, 1.6)
ROUND: Seconds = 60.0
ENOUGH = 0.98  # of a static share

Lie = Callable[[Job], Job]


def servers(count: int, gpus: int) -> dict[NodeId, Node]:
    nodes = [node(f"n{i}", gpus) for i in range(count)]
    return {server.id: server for server in nodes}


def trained(params: gp.ThroughputParams = PARAMS, noise: float = 2000.0, done: float = 0.5) -> Profile:
    """The profile of a job that has been on every size. `done`: the part of its length, 0 to 1."""
    rows = tuple(
        ProfileRow(n, k, m, float(gp.grad_time(params, m)), float(gp.step_time(params, n, k, m)), 50.0)
        for n, k in SHAPES
        for m in BATCHES
    )
    declared = Declared(
        adaptive=True, batch_size=64, max_batch_size=4096, max_atomic_batch=128, dataset_size=50_000, epochs=100
    )
    return Profile(declared, rows, Noise(1.0, noise, 10_000), Progress(50, 100, 0, 0, 1000.0, done))


# -- lies ------------------------------------------------------------------------------------------


def _with_times(liar: Job, time: Callable[[ProfileRow], float]) -> Job:
    rows = tuple(
        replace(row, step_time=time(row), grad_time=min(row.grad_time, time(row))) for row in liar.profile.rows
    )
    return replace(liar, profile=replace(liar.profile, rows=rows))


def honest(truth: Job) -> Job:
    return truth


def quick(truth: Job) -> Job:
    """No synchronisation cost and a huge noise scale."""
    liar = _with_times(truth, lambda row: row.grad_time)
    return replace(liar, profile=replace(liar.profile, noise=Noise(1.0, 1e7, 10_000)))


def superlinear(truth: Job) -> Job:
    return _with_times(truth, lambda row: row.grad_time / row.replicas)


def nearly_done(truth: Job) -> Job:
    return replace(truth, profile=replace(truth.profile, progress=Progress(99, 100, 0, 0, 1e6, 0.9999)))


def urgent(truth: Job) -> Job:
    return replace(truth, spec=truth.spec.having(priority=10))


def starved(truth: Job) -> Job:
    return replace(truth, submitted_at=-1e6, service=0.0)


LIES: Mapping[str, Lie] = {
    "honest": honest,
    "quick": quick,
    "superlinear": superlinear,
    "nearly done": nearly_done,
    "priority 10": urgent,
    "starved": starved,
}
NUMBERS: Mapping[str, int] = {"12 jobs": 12, "1 job": 1}  # lies by the number of jobs, which are honest


# -- rounds ----------------------------------------------------------------------------------------


@dataclass
class Team:
    """Jobs as they truly are, and the lies by user. No job ends."""

    nodes: Mapping[NodeId, Node]
    jobs: Mapping[JobId, Job]
    policy: Policy
    lies: Mapping[str, Lie] = field(default_factory=dict)
    config: Config = field(default_factory=Config)
    now: Seconds = 1000.0
    placements: dict[JobId, Placement] = field(default_factory=dict)
    launched: dict[JobId, Seconds] = field(default_factory=dict)
    service: defaultdict[JobId, float] = field(default_factory=lambda: defaultdict(float))  # of earlier attempts
    gpu_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by user
    snapshot: Snapshot = field(init=False)  # that the last round decided on, with the standings after it

    def __post_init__(self) -> None:
        self.snapshot = Snapshot(config=self.config, nodes=self.nodes)

    def round(self) -> None:
        """One round, and a minute after it."""
        before = self.snapshot_now()
        division = allocate_for(before, self.policy)
        for name in self.jobs:
            old, new = self.placements.get(name), division.placements.get(name)
            if old is not None and old != new:
                self.service[name] += old.replicas * (self.now - self.launched[name])
            if new is not None and old != new:
                self.launched[name] = self.now
        self.placements = dict(division.placements)
        self.snapshot = replace(before, standings=division.standings, standings_at=self.now)
        for name, placement in self.placements.items():
            self.gpu_seconds[self.jobs[name].spec.user] += placement.replicas * ROUND
        self.now += ROUND

    def snapshot_now(self) -> Snapshot:
        """What the next round decides on."""
        return replace(self.snapshot, now=self.now, jobs={name: self._claim(name) for name in self.jobs})

    def _claim(self, name: JobId) -> Job:
        """The job where it runs, as its user describes it."""
        truth = replace(self.jobs[name], service=self.service[name])
        placement = self.placements.get(name)
        if placement is not None:
            since = self.launched[name]
            truth = replace(
                truth,
                state=JobState.RUNNING,
                placement=placement,
                attempt=1,
                launched_at=since,
                started_at=since,
                last_replicas=placement.replicas,
            )
        return self.lies.get(truth.spec.user, honest)(truth)

    def gpus(self, user: str) -> int:
        return sum(placement.replicas for placement in self._of(user).values())

    def utility(self, user: str) -> float:
        """The sum of the true goodputs of the user's jobs, each in goodputs of one GPU."""
        return self._utility(self._of(user))

    def static(self, user: str, gpus: int) -> float:
        """The best utility of a user who had just `gpus` GPUs, on few servers, with nobody else there. GPUs that others
        hold and cannot give back are no part of it."""
        occupied = {
            place
            for place, name in held_by(self.snapshot_now()).items()
            if self.jobs[name].spec.user != user and not self.jobs[name].movable
        }
        rest = {
            name: tuple(device for device in server.devices if (name, device.id) not in occupied)
            for name, server in self.nodes.items()
        }
        nodes = {}
        for name in sorted(rest, key=lambda name: (-len(rest[name]), name)):
            nodes[name] = replace(self.nodes[name], devices=rest[name][:gpus])
            gpus -= len(nodes[name].devices)
        own_jobs = {name: truth for name, truth in self.jobs.items() if truth.spec.user == user}
        alone = Snapshot(now=self.now, config=self.config, nodes=nodes, jobs=own_jobs)
        return self._utility(place(alone, self.policy.aside("static").allocate(alone)))

    def _of(self, user: str) -> dict[JobId, Placement]:
        return {name: where for name, where in self.placements.items() if self.jobs[name].spec.user == user}

    def _utility(self, placements: Mapping[JobId, Placement]) -> float:
        requests = [(self.jobs[name], (Shape(1), placement.shape)) for name, placement in placements.items()]
        total = 0.0
        for (_, (_, shape)), table in zip(requests, tables(requests), strict=True):
            total += shape.replicas if table is None else float(table.goodput[1] / table.goodput[0])
        return total


@dataclass(frozen=True, slots=True)
class Course:
    """How a user fares over some rounds: for how long without a break they are below ENOUGH of their static share, and
    the means of their utility over that share and of their GPUs."""

    longest: Seconds
    ratio: float
    gpus: float


def courses(team: Team, static_gpus: Mapping[str, int], rounds: int) -> dict[str, Course]:
    """By user, with the size of each user's static share."""
    ratios: dict[str, list[float]] = {user: [] for user in static_gpus}
    gpus: dict[str, list[int]] = {user: [] for user in static_gpus}
    for _ in range(rounds):
        team.round()
        for user, size in static_gpus.items():
            static = team.static(user, size)
            ratios[user].append(team.utility(user) / static if static else 1.0)
            gpus[user].append(team.gpus(user))
    return {
        user: Course(_longest(ratios[user]), float(np.mean(ratios[user])), float(np.mean(gpus[user])))
        for user in static_gpus
    }


def _longest(ratios: Sequence[float]) -> Seconds:
    runs = [len(list(run)) for is_short, run in groupby(ratio < ENOUGH for ratio in ratios) if is_short]
    return max(runs, default=0) * ROUND


def trio(lie: str, config: Config, name: str = "goodput") -> Team:
    """Ana, bob and cat with two equal jobs each on four servers of four GPUs. Bob lies."""
    users = ["ana", "ana", *["bob"] * NUMBERS.get(lie, 2), "cat", "cat"]
    return Team(servers(4, 4), _trainings(users), policy(name), {"bob": LIES.get(lie, honest)}, config)


def equals(users: int, jobs: int, count: int, gpus: int, name: str = "goodput") -> Team:
    """Honest users with as many equal jobs each on `count` servers of `gpus` GPUs."""
    owners = [f"u{i}" for i in range(users) for _ in range(jobs)]
    return Team(servers(count, gpus), _trainings(owners), policy(name))


def _trainings(users: Sequence[str]) -> dict[JobId, Job]:
    return {
        JobId(number): job(number, spec_=spec(user=user), profile=trained()) for number, user in enumerate(users, 1)
    }


def random_team(seed: int, config: Config, name: str = "goodput") -> Team:
    """Two to five users. Only u0 is honest. The others lie twice each and have up to 12 jobs."""
    rng = np.random.default_rng(seed)
    users = [f"u{i}" for i in range(int(rng.integers(2, 6)))]
    count, gpus = ((2, 4), (4, 4), (2, 8), (3, 4))[int(rng.integers(4))]
    jobs: dict[JobId, Job] = {}
    lies: dict[str, Lie] = {}
    for user in users:
        for _ in range(int(rng.integers(1, 4 if user == "u0" else 13))):
            jobs[JobId(len(jobs) + 1)] = _random_job(rng, len(jobs) + 1, user)
        if user != "u0":
            lies[user] = partial(_both, *rng.choice(list(LIES), 2))
    return Team(servers(count, gpus), jobs, policy(name), lies, config)


def _both(first: str, second: str, truth: Job) -> Job:
    return LIES[second](LIES[first](truth))


def equal_part(team: Team) -> int:
    """Whole GPUs of each user, if all have as many."""
    return sum(len(server.devices) for server in team.nodes.values()) // len(
        {truth.spec.user for truth in team.jobs.values()}
    )


def _random_job(rng: np.random.Generator, number: int, user: str) -> Job:
    """A black box on one GPU, or a training, which may be limited to a few GPUs."""
    kind = rng.random()
    if kind < 0.15:
        return job(number, spec_=black_box(user=user))
    compute = float(rng.uniform(0.02, 0.4))
    params = gp.ThroughputParams(
        compute / 3,
        compute / 100,
        compute * float(rng.uniform(0.05, 1.5)),
        compute * 0.1,
        compute * float(rng.uniform(0.02, 0.3)),
        compute * 0.03,
        1.8,
    )
    most = int(rng.integers(1, 5)) if kind < 0.4 else 0
    profile = trained(params, float(rng.uniform(50, 8000)), float(rng.uniform(0.02, 0.98)))
    return job(number, spec_=spec(user=user, up_to=most), profile=profile)
