"""One line for each job: why it waits, what its start waits for, or how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpq.control import divergence, event_text
from gpq.control.answers import reason_text
from gpq.core.explain.explain import explain
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.gates import closed_gates, halted_jobs
from gpq.core.feasibility.leases import must_wait, silence
from gpq.core.model.jobs import TERMINAL, DesiredState, Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.reconcile import stuck_reason
from gpq.core.state.stragglers import hang


@dataclass
class StatusReasons:
    """Waiting jobs that ask for the same thing share a headline, so a thousand of them cost one.
    `staging` looks up the files on their way to a job."""

    snapshot: Snapshot
    allocation: Mapping[JobId, Shape] | None
    now: Seconds
    staging: Callable[[JobId], Staging | None]
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
        return divergence.line(job, self.now) or idle_gpus.line(self.snapshot, job)

    def _queue_reason(self, job: Job) -> str:
        """Why a queued job has no GPU. There may be ten thousand such jobs."""
        if job.id in self._gate_lines:
            return self._gate_lines[job.id]
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
        return reason_text.text(explain(self.snapshot, self.allocation, job).headline)

    def staging_of(self, job: Job) -> Staging | None:
        """The files on their way to the servers where the job is starting. It looks once per
        answer, so that the whole answer agrees."""
        if job.state is not JobState.STARTING or job.wish is DesiredState.CANCEL:
            return None
        if job.id not in self._stagings:
            self._stagings[job.id] = self.staging(job.id)
        return self._stagings[job.id]
