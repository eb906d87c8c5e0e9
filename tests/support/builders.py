"""Builders, so that a test names only what it is about."""

from __future__ import annotations

from gpq.core.goodput.goodput import GradientStats, ThroughputParams
from gpq.core.model.jobs import Job, JobSpec, JobState, Level
from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.placements import Placement
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Declared, Profile
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.lab.policies.pollux import Pollux
from gpq.policies.registry import policy
from tests.support.programs import Program

PARAMS = ThroughputParams(
    alpha_c=0.02, beta_c=0.001, alpha_n=0.02, beta_n=0.002, alpha_r=0.005, beta_r=0.001, gamma=1.5
)


def spec(*, level: Level = Level.SCRIPT, user: str = "ana", gpus: int = 1, up_to: int = 0, **more: object) -> JobSpec:
    fields: dict[str, object] = {"argv": ("train.py",), "cwd": "/", "user": user, "uid": 1000, "level": level}
    return JobSpec(**{**fields, "min_gpus": gpus, "max_gpus": up_to, **more})  # type: ignore[arg-type]


def black_box(gpus: int = 1, **more: object) -> JobSpec:
    return spec(level=Level.BLACK_BOX, gpus=gpus, up_to=gpus, **more)


def node(
    name: str, gpus: int = 4, *, type: str = "A100", state: NodeState = NodeState.UP, memory: int = 40_000
) -> Node:
    devices = tuple(Device(DeviceId(f"{name}-{i}"), i, "cuda", type, memory) for i in range(gpus))
    return Node(NodeId(name), state, devices=devices, cores=8, boot_id="boot")


def on(name: str, *devices: int) -> Placement:
    return Placement(((NodeId(name), tuple(DeviceId(f"{name}-{i}") for i in devices)),))


DECLARED = Declared(
    adaptive=True, batch_size=64, max_batch_size=1024, max_atomic_batch=128, dataset_size=10_000, epochs=10
)


def job(
    number: int, *, state: JobState = JobState.PENDING, at: float = 0.0, spec_: JobSpec | None = None, **more: object
) -> Job:
    return Job(JobId(number), spec_ or spec(), submitted_at=at, state=state, **more)  # type: ignore[arg-type]


def running(number: int, placement: Placement, *, since: float = -1000.0, declared: bool = True, **more: object) -> Job:
    fields: dict[str, object] = {
        "attempt": 1,
        "placement": placement,
        "launched_at": since,
        "started_at": since,
        "first_started_at": since,
        "started_nodes": tuple(node for node, _ in placement.parts),
        "last_replicas": placement.replicas,
        "profile": Profile(declared=DECLARED) if declared else Profile(),
    }
    return job(number, **{"state": JobState.RUNNING, **fields, **more})


def snapshot(*things: Job | Node, now: float = 0.0, **config: object) -> Snapshot:
    jobs = {thing.id: thing for thing in things if isinstance(thing, Job)}
    nodes = {thing.id: thing for thing in things if isinstance(thing, Node)}
    return Snapshot(
        now=now,
        config=Config(**config),  # type: ignore[arg-type]
        nodes=nodes,
        jobs=jobs,
        next_id=max(jobs, default=0) + 1,
    )


def program(at: float = 0.0, *, work: float = 20_000.0, noise: float = 500.0, **more: object) -> Program:
    """An adaptive training job with a true model."""
    fields: dict[str, object] = {
        "at": at,
        "spec": spec(),
        "params": PARAMS,
        "stats": GradientStats(1.0, noise),
        "declared": DECLARED,
        "base_steps": work,
    }
    return Program(**{**fields, **more})  # type: ignore[arg-type]


def command(at: float = 0.0, *, seconds: float = 30.0, gpus: int = 1, **more: object) -> Program:
    """A black box."""
    return Program(at, black_box(gpus, **more), seconds=seconds)


def brief(name: str) -> Policy:
    """A policy for rules that hold however long it searches: Pollux with a short search. A long one would take minutes."""
    return Pollux(generations=10) if name == Pollux.name else policy(name)
