"""Snapshot and history -> rows of jobs and servers. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpq.control import divergence, event_text
from gpq.control.answers import node_rows
from gpq.control.answers.sentences import SENTENCES
from gpq.control.answers.status_reasons import StatusReasons
from gpq.core.accounting.fairness import JobFairness, fairness_by_user
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.leases import silence
from gpq.core.goodput import estimates
from gpq.core.goodput.models import is_beyond
from gpq.core.model.accounts import UserShare
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState, Level, Seat
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.core.rounds.rounds import Round
from gpq.core.state.stragglers import hang, stragglers
from gpq.rpc.job_answers import JobView, PartView, StagingView
from gpq.rpc.node_answers import NodeView

NO_MODEL = SENTENCES["no-model"]
MAX_COMMAND = 500  # characters of the command in a row


class Pace(NamedTuple):
    """None: not known."""

    goodput: float | None = None
    throughput: float | None = None
    efficiency: float | None = None


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
    _indices: dict[tuple[NodeId, DeviceId], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reasons = StatusReasons(self.snapshot, self.allocation, self.now, self.staging)
        for node in self.snapshot.nodes.values():
            for device in node.devices:
                self._indices[node.id, device.id] = device.index

    def job(self, job: Job) -> JobView:
        """The row of a live or an ended job."""
        profile, replicas = job.profile, job.replicas
        ended_at = job.ended_at if job.state in TERMINAL else None
        until = self.now if ended_at is None else ended_at
        pace, trouble = _pace(job), self._trouble(job)
        fairness = self.fairness.get(job.id, _NO_FAIRNESS)
        array, index, params = _array_place(job.spec.seat)
        return JobView(
            id=int(job.id),
            name=job.name,
            user=job.spec.user,
            state=str(job.state),
            reason=self.reason(job),
            level=level_word(job),
            gpus=replicas,
            placement=self.parts(job.placement),
            total_batch=replicas * profile.atomic_batch * (profile.accum_steps + 1),
            atomic_batch=profile.atomic_batch,
            accum_steps=profile.accum_steps,
            goodput=pace.goodput,
            throughput=pace.throughput,
            efficiency=pace.efficiency,
            speedup=fairness.speedup,
            rho=fairness.rho,
            progress=profile.progress.fraction if profile.progress else None,
            eta_seconds=self._eta(job),
            age_seconds=max(until - job.submitted_at, 0.0),
            run_seconds=run_seconds(job, self.now),
            submitted_at=event_text.stamp(job.submitted_at),
            started_at=event_text.maybe_stamp(job.first_started_at),
            ended_at=event_text.maybe_stamp(ended_at),
            attempt=job.attempt,
            restarts=job.restarts,
            resizes=job.resizes,
            batch_changes=profile.batch_changes,
            exit_status=_exit_status(job),
            priority=job.spec.priority,
            command=event_text.command_line(job.spec.argv, MAX_COMMAND),
            unknown=trouble.unknown,
            unknown_seconds=trouble.unknown_seconds,
            hung=trouble.hung,
            hung_seconds=trouble.hung_seconds,
            diverged=divergence.divergences(job, until),
            stragglers=list(stragglers(job)) if job.state in HOLDS_DEVICES else [],
            staging=self._staging(job),
            tags=list(job.spec.tags),
            after=[str(dependency) for dependency in job.awaits],
            begin_at=event_text.maybe_stamp(job.spec.begin or None),
            array=array,
            index=index,
            background=job.spec.background,
            halted=self._reasons.halted.get(job.id, ""),
            params=params,
            notes=self.notes(job),
        )

    def jobs(self, jobs: Iterable[Job]) -> list[JobView]:
        return [self.job(job) for job in jobs]

    def reason(self, job: Job) -> str:
        """Why it waits, or how it ended. "" for a job that simply runs."""
        return self._reasons.reason(job)

    def notes(self, job: Job) -> list[str]:
        """What its user should know, the oldest first. Every place that shows a job shows these."""
        lines = [*job.notices, *self.unsent(job.id)]
        if job.placement is not None and is_beyond(job.profile):
            lines.append(NO_MODEL)
        if job.state in TERMINAL and job.ended_at is not None:
            lines.append(divergence.line(job, job.ended_at))
        return list(dict.fromkeys(filter(None, lines)))

    def staging_of(self, job: Job) -> Staging | None:
        """The files on their way to the servers where the job is starting."""
        return self._reasons.staging_of(job)

    def _staging(self, job: Job) -> StagingView | None:
        staging = self.staging_of(job)
        if staging is None:
            return None
        return StagingView(staging.what, staging.done, staging.total, staging.rate, staging.note)

    def _trouble(self, job: Job) -> Trouble:
        server_silence = silence(self.snapshot, job, self.now)
        if server_silence is not None:
            return Trouble(str(server_silence), server_silence.seconds)
        stall = hang(job, self.now)
        if stall is not None:
            return Trouble(hung=stall.line, hung_seconds=stall.seconds)
        return Trouble()

    def _eta(self, job: Job) -> Seconds | None:
        if job.state is not JobState.RUNNING:
            return None
        return estimates.remaining_seconds(job, self.now)

    @property
    def allocation(self) -> Mapping[JobId, Shape] | None:
        return self.round.allocation if self.round is not None else None

    def parts(self, placement: Placement | None) -> list[PartView]:
        if placement is None:
            return []
        return [
            PartView(
                str(node),
                [str(device) for device in devices],
                [self.index_of(node, device) for device in devices],
            )
            for node, devices in placement.parts
        ]

    def index_of(self, node: NodeId, device: DeviceId) -> int:
        """-1 for a device that is no longer known."""
        return self._indices.get((node, device), -1)

    def nodes(self, names: Iterable[str] = ()) -> list[NodeView]:
        """All servers, or the named ones, by name."""
        return node_rows.nodes(self.snapshot, self.now, names)

    def warnings(self) -> list[str]:
        """Lines about servers, for the head of a listing."""
        return node_rows.warnings(self.snapshot, self.now)

    def users(self) -> list[UserShare]:
        """The fairness table by user."""
        return fairness_by_user(self.snapshot, self.fairness)


def _pace(job: Job) -> Pace:
    """The estimate for a job that has GPUs, otherwise the measured value."""
    estimate = estimates.now_of(job) if job.state in HOLDS_DEVICES else None
    if estimate is not None:
        return Pace(estimate.goodput, estimate.throughput, estimate.efficiency)
    if job.replicas:
        return Pace(throughput=job.profile.samples_per_second or None)
    return Pace()


def _array_place(seat: Seat | None) -> tuple[int | None, int | None, dict[str, str]]:
    """(array, index in it, parameters of a sweep)."""
    if seat is None:
        return None, None, {}
    return int(seat.array), seat.index, dict(seat.params)


def _exit_status(job: Job) -> int | None:
    if job.state in TERMINAL and job.exit is not None:
        return job.exit.status
    return None


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
        return job.run_seconds + max(now - (job.started_at or now), 0.0)
    return job.run_seconds
