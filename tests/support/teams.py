"""Teams of users who share GPUs, some of whom lie, round after round. What a job really makes of its GPUs is kept
apart from what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.estimates import tables
from gpq.core.model.jobs import Job, JobSpec, JobState, Level
from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Declared, Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement import place
from gpq.core.rounds.rounds import allocate_for

SHAPES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))
BATCHES = (16, 64, 128)
PARAMS = gp.ThroughputParams(0.05, 0.01, 0.3, 0.01, 0.05, 0.005, 1.6)

Lie = Callable[[Job], Job]


def servers(count: int, gpus: int) -> dict[NodeId, Node]:
    return {
        NodeId(f"n{i}"): Node(
            NodeId(f"n{i}"),
            NodeState.UP,
            devices=tuple(Device(DeviceId(f"n{i}-{k}"), k, "cuda", "A100", 40_000) for k in range(gpus)),
        )
        for i in range(count)
    }


def trained(params: gp.ThroughputParams, noise: float, left: float = 0.5) -> Profile:
    """The profile of a job that has been on every size."""
    rows = tuple(
        ProfileRow(n, k, m, float(gp.grad_time(params, m)), float(gp.step_time(params, n, k, m)), 50.0)
        for n, k in SHAPES
        for m in BATCHES
    )
    return Profile(
        declared=Declared(
            adaptive=True, batch_size=64, max_batch_size=4096, max_atomic_batch=128, dataset_size=50_000, epochs=100
        ),
        rows=rows,
        noise=Noise(1.0, noise, 10_000),
        progress=Progress(50, 100, 0, 0, 1000.0, 1.0 - left),
    )


def training(number: int, user: str, profile: Profile, *, level: Level = Level.SCRIPT, **more: object) -> Job:
    spec = JobSpec(("train.py",), "/", user=user, uid=1000, level=level)
    return Job(JobId(number), spec.having(**more), submitted_at=0.0, profile=profile)


# -- lies ------------------------------------------------------------------------------------------


def _with_times(job: Job, time: Callable[[ProfileRow], float]) -> Job:
    rows = tuple(replace(row, step_time=time(row), grad_time=min(row.grad_time, time(row))) for row in job.profile.rows)
    return replace(job, profile=replace(job.profile, rows=rows))


def quick(job: Job) -> Job:
    """No synchronisation cost and a huge noise scale."""
    job = _with_times(job, lambda row: row.grad_time)
    return replace(job, profile=replace(job.profile, noise=Noise(1.0, 1e7, 10_000)))


def superlinear(job: Job) -> Job:
    return _with_times(job, lambda row: row.grad_time / row.replicas)


def nearly_done(job: Job) -> Job:
    return replace(job, profile=replace(job.profile, progress=Progress(99, 100, 0, 0, 1e6, 0.9999)))


def urgent(job: Job) -> Job:
    return replace(job, spec=job.spec.having(priority=10))


def starved(job: Job) -> Job:
    return replace(job, submitted_at=-1e6, service=0.0)


def honest(job: Job) -> Job:
    return job


LIES: Mapping[str, Lie] = {
    "honest": honest, "quick": quick, "superlinear": superlinear, "nearly done": nearly_done, "priority": urgent,
    "starved": starved,
}  # fmt: skip


# -- rounds ----------------------------------------------------------------------------------------


@dataclass
class Team:
    """Jobs as they truly are, and how their users tell of them. Nobody's job ends."""

    nodes: Mapping[NodeId, Node]
    jobs: dict[JobId, Job]
    policy: Policy
    lies: Mapping[str, Lie] = field(default_factory=dict)  # by user
    config: Config = field(default_factory=Config)
    now: float = 1000.0
    held: dict[JobId, Placement] = field(default_factory=dict)
    launched: dict[JobId, float] = field(default_factory=dict)
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    snapshot: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        self.snapshot = Snapshot(config=self.config, nodes=self.nodes)

    def seen(self) -> Snapshot:
        jobs = {}
        for name, job in self.jobs.items():
            told = self.lies.get(job.spec.user, honest)(job)
            if name in self.held:
                told = replace(
                    told, state=JobState.RUNNING, placement=self.held[name], attempt=1, launched_at=self.launched[name],
                    started_at=self.launched[name], last_replicas=self.held[name].replicas,
                )  # fmt: skip
            jobs[name] = told
        return replace(self.snapshot, now=self.now, jobs=jobs)

    def round(self, seconds: float = 60.0) -> Snapshot:
        """One round, and `seconds` after it. The snapshot that it decided on."""
        here = self.seen()
        division = allocate_for(here, self.policy)
        for name, placement in division.placements.items():
            if self.held.get(name) != placement:
                self.launched[name] = self.now
        self.held = dict(division.placements)
        self.snapshot = replace(here, standings=division.standings, standings_at=self.now)
        for name, placement in self.held.items():
            user = self.jobs[name].spec.user
            self.gpu_seconds[user] = self.gpu_seconds.get(user, 0.0) + placement.replicas * seconds
        self.now += seconds
        return here

    def gpus(self, user: str) -> int:
        return sum(placement.replicas for name, placement in self.held.items() if self.jobs[name].spec.user == user)

    def utility(self, user: str) -> float:
        """True goodput of the user's jobs, each in goodputs of one GPU."""
        return utility(self.jobs, {name: p for name, p in self.held.items() if self.jobs[name].spec.user == user})

    def static(self, user: str, gpus: int) -> float:
        """The same if the user had just `gpus` GPUs, packed, and nobody else were there."""
        nodes, missing = {}, gpus
        for name, node in sorted(self.nodes.items()):
            nodes[name] = replace(node, devices=node.devices[:missing])
            missing -= len(nodes[name].devices)
        own = {name: job for name, job in self.jobs.items() if job.spec.user == user}
        alone = Snapshot(now=self.now, config=self.config, nodes=nodes, jobs=own)
        return utility(self.jobs, place(alone, self.policy.aside("static").allocate(alone)))


def utility(jobs: Mapping[JobId, Job], placements: Mapping[JobId, Placement]) -> float:
    requests: Sequence[tuple[Job, tuple[Shape, ...]]] = [
        (jobs[name], (Shape(1), placement.shape)) for name, placement in placements.items()
    ]
    total = 0.0
    for (_, (_, shape)), table in zip(requests, tables(requests), strict=True):
        total += shape.replicas if table is None else float(table.goodput[1] / table.goodput[0])
    return total


def random_profile(rng: np.random.Generator) -> Profile:
    compute = float(rng.uniform(0.02, 0.4))
    params = gp.ThroughputParams(
        compute / 3, compute / 100, compute * float(rng.uniform(0.05, 1.5)), compute * 0.1,
        compute * float(rng.uniform(0.02, 0.3)), compute * 0.03, 1.8,
    )  # fmt: skip
    return trained(params, float(rng.uniform(50, 8000)), float(rng.uniform(0.02, 0.98)))
