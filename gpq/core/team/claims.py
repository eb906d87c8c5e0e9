"""What a member's daemon tells the arbiter: the servers as its agents see them, and its jobs as
claims to their GPUs.

A claim has numbers, names of GPUs and servers, and the name of its job. It has no field for a
command, an argument, a variable, a folder, a tag or a log, so none can be told by mistake. Times
are by the member's clock, and `Statement.now` says what that shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from gpq.core.feasibility.leases import may_start
from gpq.core.feasibility.reservations import barred_devices
from gpq.core.feasibility.shapes import is_fit, nodes_up
from gpq.core.model.jobs import DesiredState, Job, JobSpec, JobState, Level, StopReason, arrival
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.profile import (
    Declared,
    Habit,
    Noise,
    NoisePoint,
    Profile,
    ProfileRow,
    Progress,
)
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds

# claims of jobs that wait. Of the rest only their number is told
WAITING_PER_DEVICE, MOST_WAITING = 2, 500
LONGEST_NAME = 200  # characters
Parts = tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as an agent of the member sees it. `id` is its UUID."""

    id: DeviceId
    index: int
    kind: str
    type: str
    memory_mib: int = 0
    state: DeviceState = DeviceState.OK


@dataclass(frozen=True, slots=True)
class ServerView:
    """`name` is the member's own. `machine` is the same for all who reach the same machine.
    `address` and `port` are how the member reaches it by ssh. "": without ssh."""

    name: NodeId
    machine: str
    state: NodeState
    devices: tuple[DeviceView, ...] = ()
    address: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that holds devices, or may start now."""

    job: JobId
    submitted_at: Seconds
    name: str = ""  # "" if it is private
    level: Level = Level.BLACK_BOX
    state: JobState = JobState.PENDING
    wish: DesiredState = DesiredState.RUN
    attempt: int = 0
    parts: Parts = ()  # the devices that it holds
    leaves: bool = False  # it holds them, but must be moved
    servers: tuple[NodeId, ...] = ()  # where alone it can run. Empty: wherever there is a GPU
    min_gpus: int = 1
    max_gpus: int = 0  # 0: as many as help
    rigid: bool = False
    gpu_type: str = ""
    min_gpu_memory_mib: int = 0
    priority: int = 0
    background: bool = False
    time_limit: Seconds | None = None
    grace: Seconds = 120.0
    launched_at: Seconds | None = None
    started_at: Seconds | None = None
    stop: StopReason | None = None
    stop_sent_at: Seconds | None = None
    target: Shape | None = None
    run_seconds: Seconds = 0.0
    service: float = 0.0
    restart_seconds: Seconds | None = None
    last_replicas: int = 0
    declared: Declared | None = None
    rows: tuple[ProfileRow, ...] = ()
    noise: Noise | None = None
    early_noise: Noise | None = None
    noise_curve: tuple[NoisePoint, ...] = ()
    progress: Progress | None = None
    atomic_batch: int = 0
    accum_steps: int = 0
    samples_per_second: float = 0.0
    lost: tuple[str, ...] = ()  # freedoms (profile.FREEDOMS)


# fields of a claim that have the same name there
_NAMES = [field.name for field in fields(Claim)]
OF_JOB = [name for name in _NAMES if name in Job.__dataclass_fields__]
OF_SPEC = [name for name in _NAMES if name in JobSpec.__struct_fields__]
OF_PROFILE = [name for name in _NAMES if name in Profile.__dataclass_fields__]
MOMENTS = [name for name in OF_JOB if name.endswith("_at")]


@dataclass(frozen=True, slots=True)
class Statement:
    """All that a member's daemon tells. `more` counts the waiting jobs without a claim."""

    now: Seconds
    servers: tuple[ServerView, ...] = ()
    claims: tuple[Claim, ...] = ()
    more: int = 0


def statement(
    snapshot: Snapshot,
    offer: Snapshot,
    *,
    private: bool = False,
    addresses: Mapping[str, tuple[str, int]] | None = None,
) -> Statement:
    """`offer`: `snapshot` as a policy may see it (`rounds.offer_of`). `private`: no names of
    jobs. `addresses`: by server, with its port."""
    servers = tuple(
        ServerView(
            name,
            node.machine or node.boot_id,
            NodeState.DRAINED if name in snapshot.drained else node.state,
            tuple(
                DeviceView(d.id, d.index, d.kind, d.type, d.memory_mib, d.state)
                for d in node.devices
            ),
            *(addresses or {}).get(name, ()),
        )
        for name, node in sorted(snapshot.nodes.items())
        if node.boot_id
    )
    waiting = sorted(
        (
            job
            for job in offer.jobs.values()
            if snapshot.jobs[job.id].placement is None and may_start(offer, job)
        ),
        key=arrival,
    )
    size = sum(len(server.devices) for server in servers)
    most = min(WAITING_PER_DEVICE * size, MOST_WAITING)
    claims = [_claim(job, offer, private) for job in snapshot.holders]
    claims += [_claim(job, offer, private) for job in islice(waiting, most)]
    return Statement(snapshot.now, servers, tuple(claims), max(len(waiting) - most, 0))


def _claim(job: Job, offer: Snapshot, private: bool) -> Claim:
    """`job` as it is. What it may have is as offered."""
    proposal = offer.jobs.get(job.id, job)
    spec, profile, declared = proposal.spec, proposal.profile, proposal.profile.declared
    target, name = proposal.target, "" if private else _plain(spec.name)
    if declared is not None:
        declared = replace(declared, rule="")
    bases = {"rows": profile.basis, "noise": profile.noise_basis, "declared": declared}
    return Claim(
        job=job.id,
        parts=job.parts,
        leaves=job.placement is not None and proposal.placement is None,
        servers=_servers(proposal, offer),
        lost=tuple(sorted(profile.lost)),
        **{**_values(job, OF_JOB), "target": target},
        **{**_values(spec, OF_SPEC), "name": name},
        **{**_values(profile, OF_PROFILE), **bases},
    )


def _values(record: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _plain(name: str) -> str:
    """As a message may have it."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:LONGEST_NAME]


def _servers(job: Job, offer: Snapshot) -> tuple[NodeId, ...]:
    """The servers on which it can run, whoever has their devices. Empty if these are all."""
    barred = barred_devices(offer, job)
    fit = [
        node.id
        for node in nodes_up(offer)
        if is_fit(offer.checks, node.id, job.spec.environment)
        and any((node.id, device.id) not in barred for device in node.devices)
    ]
    return () if len(fit) == len(offer.nodes) else tuple(fit)


def _plausible(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers that no job has become 0."""
    numbers = {key: value for key, value in values.items() if isinstance(value, (int, float))}
    return {**values, **{key: max(number, 0) for key, number in numbers.items()}}


def job_of(
    claim: Claim,
    name: JobId,
    member: str,
    environment: str,
    placement: Placement | None,
    lag: Seconds,
) -> Job:
    """The claim as a job of `member`, which has no command. `environment` stands for the servers
    where it can run, and `lag` is how far the member's clock is behind."""
    of_spec = _plausible(_values(claim, OF_SPEC))
    of_spec |= {"min_gpus": max(claim.min_gpus, 1), "priority": claim.priority}
    spec = JobSpec(argv=(), cwd="", user=member, uid=0, environment=environment, **of_spec)
    habits = (Habit("member", claim.lost),) if claim.lost else ()
    profile = Profile(habits=habits, **_values(claim, OF_PROFILE))
    times = _values(claim, MOMENTS)
    moments = {field: at + lag for field, at in times.items() if at is not None}
    facts = {**_plausible(_values(claim, OF_JOB)), **moments}
    return Job(id=name, spec=spec, placement=placement, profile=profile, **facts)
