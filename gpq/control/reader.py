"""Snapshot and history -> rows of jobs and servers, with one line for each job: why it waits, what
its start waits for, or how it ended. Reads only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from gpq.control import event_text, sentences
from gpq.control.sentences import SENTENCES
from gpq.core.accounting.fairness import JobFairness, fairness_by_user
from gpq.core.explain.explain import explain
from gpq.core.explain.standings import borrowed_gpus, floors_now
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.device_status import intruders
from gpq.core.feasibility.gates import closed_gates, halted_jobs
from gpq.core.feasibility.leases import must_wait, orphan_line, silence, span
from gpq.core.feasibility.mobility import held_by
from gpq.core.goodput import estimates
from gpq.core.goodput.models import is_beyond
from gpq.core.model.accounts import UserShare
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, DesiredState, Job, JobState, Level
from gpq.core.model.nodes import Device, DeviceProcess, Node, NodeState, is_connecting
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.rounds.reconcile import stuck_reason
from gpq.core.rounds.rounds import Round
from gpq.core.state.stragglers import hang, stragglers
from gpq.rpc.job_answers import DivergedView, JobView, PartView, StagingView
from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView

NO_MODEL = SENTENCES["no-model"]
MAX_COMMAND = 500  # characters of the command in a row
FIRST_METRIC = "loss"


class Trouble(NamedTuple):
    """Lines and seconds that say why nobody can tell whether a job makes progress, or that it makes
    none."""

    unknown: str = ""
    unknown_seconds: Seconds | None = None
    hung: str = ""
    hung_seconds: Seconds | None = None


_NO_FAIRNESS = JobFairness(0.0, None, None)


@dataclass
class Reader:
    """One snapshot as seen at `now`. What is worked out about it is worked out once."""

    snapshot: Snapshot
    round: Round | None
    now: Seconds
    fairness: Mapping[JobId, JobFairness] = field(default_factory=dict)
    staging: Callable[[JobId], Staging | None] = lambda job: None
    changed: Round | None = None  # the last round that changed anybody's GPUs
    unsent: Callable[[JobId], list[str]] = lambda job: []  # notifications about it
    team: Callable[[JobId], Sequence[str]] = lambda job: ()  # see `StatusReasons`
    _indices: dict[tuple[NodeId, DeviceId], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reasons = StatusReasons(
            self.snapshot, self.allocation, self.now, self.staging, self.team
        )
        for node in self.snapshot.nodes.values():
            for device in node.devices:
                self._indices[node.id, device.id] = device.index

    def job(self, job: Job) -> JobView:
        """The row of a live or an ended job."""
        profile, replicas = job.profile, job.replicas
        trouble = self._trouble(job)
        # estimated for a job that has GPUs, otherwise as measured
        estimate = estimates.now_of(job) if job.state in HOLDS_DEVICES else None
        goodput = throughput = efficiency = None
        if estimate is not None:
            goodput, throughput = estimate.goodput, estimate.throughput
            efficiency = estimate.efficiency
        elif replicas:
            throughput = profile.samples_per_second or None
        fairness = self.fairness.get(job.id, _NO_FAIRNESS)
        staging, seat = self.reasons.staging_of(job), job.spec.seat
        eta = ended_at = exit_status = array = index = None
        params: dict[str, str] = {}
        if job.state is JobState.RUNNING:
            eta = estimates.remaining_seconds(job, self.now)
        if job.state in TERMINAL:
            ended_at = job.ended_at
            exit_status = job.exit.status if job.exit is not None else None
        if seat is not None:
            array, index, params = int(seat.array), seat.index, dict(seat.params)
        until = self.now if ended_at is None else ended_at
        return JobView(
            id=int(job.id),
            name=job.name,
            user=job.spec.user,
            state=str(job.state),
            reason=self.reasons.reason(job),
            level=level_word(job),
            gpus=replicas,
            placement=self.parts(job.placement),
            total_batch=replicas * profile.atomic_batch * (profile.accum_steps + 1),
            atomic_batch=profile.atomic_batch,
            accum_steps=profile.accum_steps,
            goodput=goodput,
            throughput=throughput,
            efficiency=efficiency,
            speedup=fairness.speedup,
            rho=fairness.rho,
            progress=profile.progress.fraction if profile.progress else None,
            eta_seconds=eta,
            age_seconds=max(until - job.submitted_at, 0.0),
            run_seconds=run_seconds(job, self.now),
            submitted_at=event_text.stamp(job.submitted_at),
            started_at=event_text.maybe_stamp(job.first_started_at),
            ended_at=event_text.maybe_stamp(ended_at),
            attempt=job.attempt,
            restarts=job.restarts,
            resizes=job.resizes,
            batch_changes=profile.batch_changes,
            exit_status=exit_status,
            priority=job.spec.priority,
            command=event_text.command_line(job.spec.argv, MAX_COMMAND),
            unknown=trouble.unknown,
            unknown_seconds=trouble.unknown_seconds,
            hung=trouble.hung,
            hung_seconds=trouble.hung_seconds,
            diverged=divergences(job, until),
            stragglers=list(stragglers(job)) if job.state in HOLDS_DEVICES else [],
            staging=StagingView(**asdict(staging)) if staging is not None else None,
            tags=list(job.spec.tags),
            after=list(map(str, job.awaits)),
            begin_at=event_text.maybe_stamp(job.spec.begin or None),
            array=array,
            index=index,
            background=job.spec.background,
            halted=self.reasons.halted.get(job.id, ""),
            params=params,
            notes=self.notes(job),
        )

    def jobs(self, jobs: Iterable[Job]) -> list[JobView]:
        return list(map(self.job, jobs))

    def notes(self, job: Job) -> list[str]:
        """What its user should know, the oldest first. Every place that shows a job shows these."""
        lines = [*job.notices, *self.unsent(job.id)]
        if job.placement is not None and is_beyond(job.profile):
            lines.append(NO_MODEL)
        if job.state in TERMINAL and job.ended_at is not None:
            lines.append(divergence_line(job, job.ended_at))
        return list(dict.fromkeys(filter(None, lines)))

    def _trouble(self, job: Job) -> Trouble:
        server_silence = silence(self.snapshot, job, self.now)
        if server_silence is not None:
            return Trouble(str(server_silence), server_silence.seconds)
        stall = hang(job, self.now)
        if stall is not None:
            return Trouble(hung=stall.line, hung_seconds=stall.seconds)
        return Trouble()

    @property
    def allocation(self) -> Mapping[JobId, Shape] | None:
        return self.round.allocation if self.round is not None else None

    @property
    def fault(self) -> str:
        """A line about the policy's last answer if that was wrong. Otherwise ""."""
        return self.round.fault if self.round is not None else ""

    def parts(self, placement: Placement | None) -> list[PartView]:
        if placement is None:
            return []
        return [
            PartView(
                str(node),
                list(map(str, devices)),
                [self.index_of(node, device) for device in devices],
            )
            for node, devices in placement.parts
        ]

    def index_of(self, node: NodeId, device: DeviceId) -> int:
        """-1 for a device that is no longer known."""
        return self._indices.get((node, device), -1)

    def nodes(self, names: Iterable[str] = ()) -> list[NodeView]:
        """All servers, or the named ones, by name."""
        holders = held_by(self.snapshot)
        selection = set(names) or set(self.snapshot.nodes)
        return [
            self._node(node, holders)
            for name, node in sorted(self.snapshot.nodes.items())
            if name in selection
        ]

    def _node(self, node: Node, holders: Mapping[tuple[NodeId, DeviceId], JobId]) -> NodeView:
        reason, drain_reason = node.reason, self.snapshot.drained.get(node.id, "")
        if is_connecting(node, self.now):
            reason = "gpq is connecting for the first time since the daemon started"
        if drain_reason and node.state is not NodeState.UP:
            drain_reason = f"drained: {drain_reason}"
        return NodeView(
            name=str(node.id),
            state=node_word(self.snapshot, node, self.now),
            reason=", ".join(filter(None, (reason, drain_reason))),
            cores=node.cores,
            memory_mib=node.memory_mib,
            seen_seconds=_age(node.seen_at, self.now) or 0.0,
            devices=[
                _device(device, holders.get((node.id, device.id)), self.now)
                for device in node.devices
            ],
            drained=node.id in self.snapshot.drained,
            address=node.address,
            strangers=_stranger_lines(node, self.now),
            damage=list(node.damage),
        )

    def warnings(self) -> list[str]:
        """Lines about the policy and servers, for the head of a listing. A server that gpq contacts
        for the first time gets no line yet."""
        snapshot, now = self.snapshot, self.now
        nodes = [node for _, node in sorted(snapshot.nodes.items())]
        return [
            *filter(None, [self.fault]),
            *(
                f"server {node.id} does not answer{f': {node.reason}' if node.reason else ''}"
                for node in nodes
                if node.state is NodeState.UNREACHABLE and not is_connecting(node, now)
            ),
            *(warning for node in nodes for warning in _stranger_lines(node, now)),
            *(warning for warning, _ in intruders(snapshot)),
        ]

    def users(self) -> list[UserShare]:
        """The fairness table by user."""
        floors = floors_now(self.snapshot)
        return [
            replace(row, floor=floors[row.user].total, borrowed=borrowed_gpus(floors[row.user]))
            if row.user in floors
            else row
            for row in fairness_by_user(self.snapshot, self.fairness)
        ]


def level_word(job: Job) -> str:
    """What the job has shown that gpq may do with it. A script is `script` until it declares
    itself."""
    declared = job.profile.declared
    if job.spec.level is not Level.SCRIPT or declared is None:
        return str(job.spec.level)
    return "adaptive" if declared.adaptive else "resizable"


def run_seconds(job: Job, now: Seconds) -> Seconds:
    """Over all attempts, including the running one."""
    if job.state in HOLDS_DEVICES and job.started_at is not None:
        return job.run_seconds + max(now - job.started_at, 0.0)
    return job.run_seconds


@dataclass
class StatusReasons:
    """Waiting jobs that ask for the same thing share a headline, so a thousand of them cost one.
    `staging` looks up the files on their way to a job. `team` is what the arbiter of a team says
    about one that waits, the headline first."""

    snapshot: Snapshot
    allocation: Mapping[JobId, Shape] | None
    now: Seconds
    staging: Callable[[JobId], Staging | None]
    team: Callable[[JobId], Sequence[str]] = lambda job: ()
    _headlines: dict[object, str] = field(default_factory=dict)
    _gate_lines: Mapping[JobId, str] = field(default_factory=dict)
    _stagings: dict[JobId, Staging | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.halted = halted_jobs(self.snapshot)
        self._gate_lines = closed_gates(replace(self.snapshot, now=self.now))

    def reason(self, job: Job) -> str:
        """Why it waits, or how it ended. "" for a job that simply runs."""
        if job.state in TERMINAL:
            return event_text.ended_line(job)
        if job.state is JobState.PENDING and job.wish is DesiredState.RUN and job.placement is None:
            return self._queue_reason(job)
        server_silence = silence(self.snapshot, job, self.now)
        if server_silence is not None:
            return str(server_silence)
        if obstacle := stuck_reason(self.snapshot, job):
            return f"stuck: {obstacle}"
        if job.state is JobState.RUNNING and job.wish is DesiredState.RUN:
            return self._trouble(job)
        staging = self.staging_of(job)
        if staging is not None:
            return str(staging)
        return self._headline(job)

    def _trouble(self, job: Job) -> str:
        """What is wrong with a running job, or ""."""
        stall = hang(job, self.now)
        if stall is not None:
            return stall.line
        return divergence_line(job, self.now) or idle_gpus.line(self.snapshot, job)

    def _queue_reason(self, job: Job) -> str:
        """Why a queued job has no GPU. There may be ten thousand such jobs."""
        if job.id in self._gate_lines:
            return self._gate_lines[job.id]
        if lines := self.team(job.id):
            return lines[0]
        if job.not_before > self.now:
            return self._headline(job)
        key = self._likeness(job)
        headline = self._headlines.get(key)
        if headline is None:
            headline = self._headlines[key] = self._headline(job)
        return headline

    def _likeness(self, job: Job) -> object:
        """Equal for jobs that wait for the same thing."""
        spec, profile = job.spec, job.profile
        reservable = (spec.user, spec.time_limit) if self.snapshot.reservations else ()
        return (
            reservable, spec.level, spec.min_gpus, spec.max_gpus, spec.rigid, spec.gpu_type,
            spec.min_gpu_memory_mib, spec.environment, spec.background, profile.declared,
            self.allocation is not None and job.id in self.allocation,
            must_wait(self.snapshot, job), profile.lost and (profile.lost, job.last_replicas),
        )  # fmt: skip

    def _headline(self, job: Job) -> str:
        return sentences.text(explain(self.snapshot, self.allocation, job).headline)

    def staging_of(self, job: Job) -> Staging | None:
        """The files on their way to the servers where the job is starting. It looks once per
        answer, so that the whole answer agrees."""
        if job.state is not JobState.STARTING or job.wish is DesiredState.CANCEL:
            return None
        if job.id not in self._stagings:
            self._stagings[job.id] = self.staging(job.id)
        return self._stagings[job.id]


def divergences(job: Job, until: Seconds) -> list[DivergedView]:
    """`until` is the end of an ended job, otherwise now."""
    values = dict(job.profile.metrics)
    views = [
        DivergedView(name, str(values[name]), event_text.stamp(since), max(until - since, 0.0))
        for name, since in job.profile.diverged
        if not math.isfinite(values.get(name, 0.0))
    ]
    return sorted(views, key=lambda view: (view.metric != FIRST_METRIC, view.metric))


def divergence_line(job: Job, now: Seconds) -> str:
    """`loss is nan for 90 s`, or "" while all metrics are finite."""
    views = divergences(job, now)
    if not views:
        return ""
    first = views[0]
    return f"{first.metric} is {first.value} for {first.seconds:.0f} s"


def node_word(snapshot: Snapshot, node: Node, now: Seconds) -> str:
    """The state to show. Silence comes first, because it is news."""
    if is_connecting(node, now):
        return str(NodeState.CONNECTING)
    if node.state is NodeState.UP and node.id in snapshot.drained:
        return str(NodeState.DRAINED)
    return str(node.state)


def _device(device: Device, holder: JobId | None, now: Seconds) -> DeviceView:
    next_probe_seconds = max(device.next_probe - now, 0.0) if device.next_probe else None
    return DeviceView(
        id=str(device.id),
        index=device.index,
        kind=device.kind,
        type=device.type,
        memory_mib=device.memory_mib,
        used_mib=device.used_mib,
        utilisation=device.utilisation,
        state=str(device.state),
        reason=device.reason,
        job=None if holder is None else int(holder),
        processes=list(map(_process, device.processes)),
        since=event_text.maybe_stamp(device.since or None),
        age_seconds=_age(device.since, now),
        next_probe_seconds=next_probe_seconds,
    )


def _process(process: DeviceProcess) -> ProcessView:
    job = process.attempt.partition(".")[0]
    return ProcessView(
        process.pid,
        process.user,
        process.name,
        process.memory_mib,
        int(job) if job.isdecimal() and len(job) <= 15 else None,
        process.command,
        event_text.maybe_stamp(process.since or None),
    )


def _age(moment: Seconds, now: Seconds) -> Seconds | None:
    """None for 0, which means never."""
    return max(now - moment, 0.0) if moment else None


def _stranger_lines(node: Node, now: Seconds) -> list[str]:
    ages = (_age(orphan.since, now) for orphan in node.strangers)
    spans = ("a moment" if age is None else span(age) for age in ages)
    return [
        orphan_line(node.id, orphan, age) for orphan, age in zip(node.strangers, spans, strict=True)
    ]
