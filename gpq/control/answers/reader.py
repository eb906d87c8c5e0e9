"""Snapshot and history -> rows of jobs and nodes. Reads, and changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpq.control import divergence, event_text
from gpq.control.answers import reason_text
from gpq.core.accounting.fairness import JobFairness, fairness_by_user
from gpq.core.explain.explain import explain
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.device_status import intruders
from gpq.core.feasibility.gates import closed
from gpq.core.feasibility.leases import silence, span
from gpq.core.feasibility.mobility import held_by
from gpq.core.feasibility.orphans import line, must_wait
from gpq.core.goodput import estimates
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState, Level, Wish
from gpq.core.model.nodes import Device, Node, NodeState, is_connecting
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.rounds.reconcile import stuck
from gpq.core.rounds.rounds import Round
from gpq.core.state.stragglers import describe, hang, seats, stragglers
from gpq.rpc.daemon_answers import UserShare
from gpq.rpc.job_answers import JobView, PartView, RankView, StagingView
from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView

MAX_COMMAND = 500  # characters of the command in a row


@dataclass
class Reader:
    """One snapshot, seen at `now`, with what was worked out about it once.

    Headlines of waiting jobs that ask for the same are the same, so a thousand of them cost one.
    """

    snapshot: Snapshot
    round: Round | None
    now: Seconds
    fairness: Mapping[JobId, JobFairness] = field(default_factory=dict)
    staging: Callable[[JobId], Staging | None] = lambda job: None
    changed: Round | None = None  # the last one that gave anybody other GPUs
    _indices: dict[tuple[NodeId, DeviceId], int] = field(default_factory=dict)
    _headlines: dict[object, str] = field(default_factory=dict)
    _gate_lines: Mapping[JobId, str] = field(default_factory=dict)
    _stagings: dict[JobId, Staging | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._gate_lines = closed(replace(self.snapshot, now=self.now))
        for node in self.snapshot.nodes.values():
            for device in node.devices:
                self._indices[node.id, device.id] = device.index

    def job(self, job: Job) -> JobView:
        """The row of a live job or one that ended."""
        profile, placement = job.profile, job.placement
        estimate = estimates.now_of(job) if job.state in HOLDS_DEVICES else None
        replicas = job.replicas
        is_over = job.state in TERMINAL
        server_silence = silence(self.snapshot, job, self.now)
        ended_at = job.ended_at if is_over else None
        fairness = self.fairness.get(job.id)
        stall = hang(job, self.now) if server_silence is None else None
        throughput = (profile.samples_per_second or None) if replicas else None
        return JobView(
            id=int(job.id),
            name=job.name,
            user=job.spec.user,
            state=str(job.state),
            reason=self.reason(job),
            level=level_word(job),
            gpus=replicas,
            placement=self.parts(placement),
            total_batch=replicas * profile.atomic_batch * (profile.accum_steps + 1),
            atomic_batch=profile.atomic_batch,
            accum_steps=profile.accum_steps,
            goodput=estimate.goodput if estimate else None,
            throughput=estimate.throughput if estimate else throughput,
            efficiency=estimate.efficiency if estimate else None,
            speedup=fairness.speedup if fairness else None,
            rho=fairness.rho if fairness else None,
            progress=profile.progress.fraction if profile.progress else None,
            eta_seconds=(
                estimates.remaining_seconds(job, self.now)
                if job.state is JobState.RUNNING
                else None
            ),
            age_seconds=max(
                (ended_at if ended_at is not None else self.now) - job.submitted_at, 0.0
            ),
            run_seconds=run_seconds(job, self.now),
            submitted_at=event_text.stamp(job.submitted_at),
            started_at=event_text.maybe_stamp(job.first_started_at),
            ended_at=event_text.maybe_stamp(ended_at),
            attempt=job.attempt,
            restarts=job.restarts,
            resizes=job.resizes,
            batch_changes=profile.batch_changes,
            exit_status=job.exit.status if is_over and job.exit is not None else None,
            priority=job.spec.priority,
            command=command_line(job),
            unknown=str(server_silence) if server_silence is not None else "",
            unknown_seconds=server_silence.seconds if server_silence is not None else None,
            hung=stall.line if stall is not None else "",
            hung_seconds=stall.seconds if stall is not None else None,
            diverged=divergence.diverged(job, ended_at if ended_at is not None else self.now),
            stragglers=list(stragglers(job)) if job.state in HOLDS_DEVICES else [],
            staging=_staging(self.staging_of(job)),
            tags=list(job.spec.tags),
            after=[str(dependency) for dependency in job.awaits],
            begin_at=event_text.maybe_stamp(job.spec.begin or None),
            array=int(seat.array) if (seat := job.spec.seat) is not None else None,
            index=seat.index if seat is not None else None,
            background=job.spec.background,
            params=dict(seat.params) if seat is not None else {},
        )

    def jobs(self, jobs: Iterable[Job]) -> list[JobView]:
        return [self.job(job) for job in jobs]

    def reason(self, job: Job) -> str:
        """Why it waits, or how it ended; "" for a job that simply runs."""
        if job.state in TERMINAL:
            return event_text.ended_line(job)
        if job.state is JobState.PENDING and job.wish is Wish.RUN and job.placement is None:
            return self._waits(job)
        server_silence = silence(self.snapshot, job, self.now)
        if server_silence is not None:
            return str(server_silence)
        if obstacle := stuck(self.snapshot, job):
            return f"stuck: {obstacle}"
        if job.state is JobState.RUNNING and job.wish is Wish.RUN:
            stall = hang(job, self.now)
            if stall is not None:
                return stall.line
            return divergence.line(job, self.now) or idle_gpus.line(self.snapshot, job)
        staging = self.staging_of(job)
        if staging is not None:
            return str(staging)
        return self._headline(job)

    def _headline(self, job: Job) -> str:
        return reason_text.text(explain(self.snapshot, self.allocation, job).headline)

    def _waits(self, job: Job) -> str:
        """Why a job of the queue has no GPU. It may be asked of ten thousand."""
        if job.id in self._gate_lines:
            return self._gate_lines[job.id]
        if job.not_before > self.now:
            return self._headline(job)
        spec = job.spec
        key = (
            spec.user if self.snapshot.reservations else "",
            spec.time_limit if self.snapshot.reservations else 0, spec.level, spec.min_gpus,
            spec.max_gpus, spec.rigid, spec.gpu_type, spec.min_gpu_memory_mib, spec.environment,
            spec.background, job.profile.declared,
            self.allocation is not None and job.id in self.allocation,
            must_wait(self.snapshot, job),
            job.profile.lost and (job.profile.lost, job.last_replicas),
        )  # fmt: skip
        headline = self._headlines.get(key)
        if headline is None:
            headline = self._headlines[key] = self._headline(job)
        return headline

    def ranks(self, job: Job) -> list[RankView]:
        """The replicas of a job that has several, by rank."""
        timings = {timing.rank: timing for timing in job.profile.ranks}
        pulses = {pulse.rank: pulse for pulse in job.pulses}
        slow = stragglers(job)
        views = []
        for rank, (node, device) in seats(job).items() if job.replicas > 1 else ():
            timing, pulse = timings.get(rank), pulses.get(rank)
            measured = timing is not None and timing.whole > 0
            views.append(
                RankView(
                    rank=rank,
                    node=str(node),
                    device=str(device),
                    index=self._indices.get((node, device), -1),
                    compute_seconds=timing.compute if timing is not None else None,
                    compute_p95_seconds=timing.p95 if timing is not None else None,
                    step_seconds=timing.whole if timing is not None else None,
                    wait_share=timing.wait / timing.whole
                    if timing is not None and measured
                    else None,
                    fetch_share=timing.fetch / timing.whole
                    if timing is not None and measured
                    else None,
                    straggler=rank in slow,
                    step=pulse.step if pulse is not None else None,
                    phase=pulse.phase if pulse is not None else "",
                    note=describe(job, rank) if rank in slow else "",
                )
            )
        return views

    def staging_of(self, job: Job) -> Staging | None:
        """What is on its way to where the job is being started. One look an answer, so that all of
        it agrees."""
        if job.state is not JobState.STARTING or job.wish is Wish.CANCEL:
            return None
        if job.id not in self._stagings:
            self._stagings[job.id] = self.staging(job.id)
        return self._stagings[job.id]

    @property
    def allocation(self) -> Mapping[JobId, Shape] | None:
        return self.round.allocation if self.round is not None else None

    def parts(self, placement: Placement | None) -> list[PartView]:
        return [
            PartView(
                str(node),
                [str(device) for device in devices],
                [self._indices.get((node, d), -1) for d in devices],
            )
            for node, devices in (placement.parts if placement else ())
        ]

    def nodes(self, names: Iterable[str] = ()) -> list[NodeView]:
        """All nodes, or those named, by name."""
        selection = set(names) or set(self.snapshot.nodes)
        holders = held_by(self.snapshot)
        return [
            self._node(self.snapshot.nodes[name], holders)
            for name in sorted(self.snapshot.nodes)
            if name in selection
        ]

    def _node(self, node: Node, holders: Mapping[tuple[NodeId, DeviceId], JobId]) -> NodeView:
        drain_reason = self.snapshot.drained.get(node.id, "")
        drain_note = (
            f"drained: {drain_reason}"
            if drain_reason and node.state is not NodeState.UP
            else drain_reason
        )
        reason = (
            "being reached for the first time since the daemon's start"
            if is_connecting(node, self.now)
            else node.reason
        )
        return NodeView(
            name=str(node.id),
            state=node_word(self.snapshot, node, self.now),
            reason="; ".join(part for part in (reason, drain_note) if part),
            cores=node.cores,
            memory_mib=node.memory_mib,
            seen_seconds=max(self.now - node.seen_at, 0.0) if node.seen_at else 0.0,
            devices=[
                _device(device, holders.get((node.id, device.id)), self.now)
                for device in node.devices
            ],
            drained=node.id in self.snapshot.drained,
            address=node.address,
            strangers=self._strangers(node),
            damage=list(node.damage),
        )

    def _strangers(self, node: Node) -> list[str]:
        return [
            line(
                node.id,
                stranger,
                span(max(self.now - stranger.since, 0.0)) if stranger.since else "a moment",
            )
            for stranger in node.strangers
        ]

    def users(self) -> list[UserShare]:
        """The fairness table by user."""
        return [
            UserShare(
                row.user,
                row.jobs,
                row.gpus,
                row.share,
                row.fair_share,
                row.speedup,
                row.rho,
                row.gpu_seconds,
            )
            for row in fairness_by_user(self.snapshot, self.fairness)
        ]

    def warnings(self) -> list[str]:
        """Lines about servers, for the head of a listing. Nothing yet of one that is being reached
        for the first time."""
        silence_lines = [
            f"server {node.id} does not answer{': ' + node.reason if node.reason else ''}"
            for _, node in sorted(self.snapshot.nodes.items())
            if node.state is NodeState.UNREACHABLE and not is_connecting(node, self.now)
        ]
        stranger_lines = [
            warning
            for _, node in sorted(self.snapshot.nodes.items())
            for warning in self._strangers(node)
        ]
        return silence_lines + stranger_lines + [warning for warning, _ in intruders(self.snapshot)]


def _staging(staging: Staging | None) -> StagingView | None:
    return (
        StagingView(staging.what, staging.done, staging.total, staging.rate, staging.note)
        if staging is not None
        else None
    )


def node_word(snapshot: Snapshot, node: Node, now: Seconds) -> str:
    """Its state as it is shown: silence comes first, it is news."""
    if is_connecting(node, now):
        return str(NodeState.CONNECTING)
    return str(
        NodeState.DRAINED
        if node.state is NodeState.UP and node.id in snapshot.drained
        else node.state
    )


def _device(device: Device, holder: JobId | None, now: Seconds) -> DeviceView:
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
        processes=[
            ProcessView(
                process.pid,
                process.user,
                process.name,
                process.memory_mib,
                _job_of(process.attempt),
                process.command,
                event_text.maybe_stamp(process.since or None),
            )
            for process in device.processes
        ],
        since=event_text.maybe_stamp(device.since or None),
        age_seconds=max(now - device.since, 0.0) if device.since else None,
        next_probe_seconds=max(device.next_probe - now, 0.0) if device.next_probe else None,
    )


def _job_of(attempt: str) -> int | None:
    job = attempt.partition(".")[0]
    return int(job) if job.isdigit() else None


def level_word(job: Job) -> str:
    """What the job lets gpq do with it, as it showed: a script is `script` until it declares
    itself."""
    declared = job.profile.declared
    if job.spec.level is not Level.SCRIPT or declared is None:
        return str(job.spec.level)
    return "adaptive" if declared.adaptive else "resizable"


def run_seconds(job: Job, now: Seconds) -> Seconds:
    """Over all attempts, the one that runs included."""
    live = job.state in HOLDS_DEVICES and job.started_at is not None
    return job.run_seconds + (max(now - (job.started_at or now), 0.0) if live else 0.0)


def command_line(job: Job) -> str:
    line = shlex.join(job.spec.argv)
    return line if len(line) <= MAX_COMMAND else line[: MAX_COMMAND - 3] + "..."
