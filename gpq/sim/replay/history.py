"""The lab's own jobs as tasks of the simulator: what was measured of each is taken for the truth.

A training script with a profile follows its fitted step-time model and its latest noise scale; its
work is what it did. Everything else takes as long as it took, on as many GPUs. Refuses to guess: a
job that never ran or was cancelled is left out, one that has not ended is replayed as far as it
came, and a type of GPUs that no job was on is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from gpq.core.goodput.goodput import gain, grad_time, step_time
from gpq.core.goodput.models import Model, model_of
from gpq.core.model.jobs import TERMINAL, Job, JobState, Wish
from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.profile import LossPoint, Profile
from gpq.core.model.snapshot import Config
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.rpc.node_answers import NodeView
from gpq.sim.measurements.ground_truth import Task
from gpq.sim.measurements.timings import NotMeasured

NAME = "history"  # of this workload, in tables


@dataclass(frozen=True, slots=True)
class LearntTruth:
    """An adaptive or resizable training script: what gpq believes of it. One epoch, as long as all
    its work."""

    name: str
    profile: Profile
    work: float  # base-batch steps
    most_replicas: int
    epochs: int = 1

    @property
    def base_batch(self) -> int:
        return self._model("").limits.base

    @property
    def max_batch(self) -> int:
        return self._model("").limits.maximum

    @property
    def fixed_batch(self) -> int:
        limits = self._model("").limits
        return limits.base if limits.maximum <= limits.base else 0

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        limits = self._model(gpu_type).limits
        return limits.min_atomic, limits.max_atomic

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        """As `limits`: a model answers for every shape."""
        return self.limits(gpu_type)

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        params = self._model(gpu_type).params
        step = float(step_time(params, len(counts), sum(counts), atomic))
        return step, max(step - float(grad_time(params, atomic)), 0.0)

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """Constant. Without a noise scale a larger batch is worth no more than the base batch."""
        model = self._model("")
        return (
            (model.stats.sqr, model.stats.var / model.limits.base)
            if model.stats is not None
            else (1.0, 0.0)
        )

    def progress(self, epoch: int) -> float:
        return self.work * epoch

    def iterations(self, total_batch: float, epoch: int) -> float:
        model = self._model("")
        return (
            self.work
            * epoch
            / float(gain(model.stats, model.limits.base, max(total_batch, model.limits.base)))
        )

    def loss(self, total_batch: float, progress: float) -> float:
        """As it was logged, the lowest so far, scaled from 1 to 0; a straight line where none
        was."""
        steps, losses = _curve(self.profile.losses, self.work)
        return float(np.interp(progress, steps, losses))

    def _model(self, gpu_type: str) -> Model:
        model = model_of(self.profile, gpu_type)
        assert model is not None  # `_task` looked
        return model


@dataclass(frozen=True, slots=True)
class FixedTruth:
    """A black box: `seconds` long on `replicas` GPUs. On fewer, which it never gets, they would
    take turns: that is what finish-time fairness compares it with."""

    name: str
    replicas: int
    seconds: Seconds
    epochs: int = 1

    @property
    def base_batch(self) -> int:
        return self.replicas

    @property
    def max_batch(self) -> int:
        return self.replicas

    @property
    def fixed_batch(self) -> int:
        return self.replicas

    @property
    def most_replicas(self) -> int:
        return self.replicas

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        return 1, 1

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        return 1, 1

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        if sum(counts) > self.replicas or atomic != 1:
            raise NotMeasured(f"{self.name} ran on {self.replicas} GPUs only")
        return 1.0, 0.0

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        return 1.0, 0.0

    def progress(self, epoch: int) -> float:
        return self.seconds * epoch

    def iterations(self, total_batch: float, epoch: int) -> float:
        return self.seconds * epoch

    def loss(self, total_batch: float, progress: float) -> float:
        return 1.0 - min(progress / self.seconds, 1.0)


def _curve(points: Sequence[LossPoint], work: float) -> tuple[list[float], list[float]]:
    values = np.minimum.accumulate([point.loss for point in points]) if points else np.zeros(0)
    if len(values) < 2 or not np.isfinite(values).all() or values[0] <= values[-1]:
        return [0.0, work], [1.0, 0.0]
    fractions = (values - values[-1]) / (values[0] - values[-1])
    return [point.base_steps for point in points], [float(value) for value in fractions]


@dataclass(frozen=True, slots=True)
class History:
    """A source: the jobs that can be replayed, and why the others cannot be."""

    replayable: tuple[Task, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # (job, why)
    unended: tuple[str, ...] = ()  # of those that are replayed: as far as they came
    gpu_types: tuple[str, ...] = ()  # that they were on, where that is known
    name: str = NAME

    def tasks(self) -> tuple[Task, ...]:
        return self.replayable


def history(
    jobs: Sequence[Job],
    now: Seconds,
    *,
    since: Seconds | None = None,
    restart: Seconds | None = None,
    hold_seconds: Mapping[JobId, Seconds] | None = None,
    gpu_types: Mapping[JobId, Set[str]] | None = None,
) -> History:
    """Those submitted in the last `since` seconds. `restart`: of every job, instead of each one's
    measured 30 s or so. `hold_seconds`: for which its user held it before its first start; it
    arrives when it was released. `gpu_types`: that it ran on."""
    recent_jobs = [job for job in jobs if since is None or job.submitted_at >= now - since]
    first_submission = min((job.submitted_at for job in recent_jobs), default=0.0)
    tasks: list[Task] = []
    left_out: list[tuple[str, str]] = []
    replayed_jobs: list[Job] = []
    for job in sorted(recent_jobs, key=lambda job: (job.submitted_at, job.id)):
        reason = _unfit(job, now)
        if reason:
            left_out.append((_name(job), reason))
        else:
            arrival = job.submitted_at - first_submission + (hold_seconds or {}).get(job.id, 0.0)
            tasks.append(_task(job, now, arrival, restart))
            replayed_jobs.append(job)
    unended_names = tuple(_name(job) for job in replayed_jobs if job.state not in TERMINAL)
    types = {kind for job in replayed_jobs for kind in (gpu_types or {}).get(job.id, ())}
    types |= {row.gpu_type for job in replayed_jobs for row in job.profile.rows}
    return History(tuple(tasks), tuple(left_out), unended_names, tuple(sorted(filter(None, types))))


def _name(job: Job) -> str:
    return f"{job.id} ({job.name})" if job.name else str(job.id)


def _unfit(job: Job, now: Seconds) -> str:
    if job.attempt == 0:
        return "never ran"
    if job.state is JobState.CANCELLED or job.wish is Wish.CANCEL:
        return "cancelled"
    if _run_seconds(job, now) <= 0 or _replicas(job) == 0:
        return "without run time"
    return ""


def _run_seconds(job: Job, now: Seconds) -> Seconds:
    """Of all attempts; the present one up to now."""
    current_attempt = (
        now - job.started_at
        if job.state not in TERMINAL and job.placement and job.started_at
        else 0.0
    )
    return job.run_seconds + max(current_attempt, 0.0)


def _replicas(job: Job) -> int:
    return job.replicas or job.last_replicas


def _task(job: Job, now: Seconds, arrives: Seconds, restart: Seconds | None) -> Task:
    spec, program = job.spec, os.path.basename(job.spec.argv[0]) if job.spec.argv else "job"
    cost = restart if restart is not None else Config().restart_cost(job)
    work = _work(job)
    if job.elastic and work > 0 and model_of(job.profile) is not None:
        truth = LearntTruth(program, job.profile, work, spec.max_gpus)
        seconds = _run_seconds(job, now)
        mean = round(job.service_at(now) / seconds) if seconds > 0 else 1
        least = max(spec.min_gpus, 1)
        replicas = max(least, min(mean, spec.max_gpus or mean))
        return Task(
            _name(job),
            arrives,
            truth,
            replicas,
            truth.base_batch,
            spec.user,
            spec.gpu_type,
            cost,
            habits=job.profile.habits,
        )
    replicas = _replicas(job)
    return Task(
        _name(job),
        arrives,
        FixedTruth(program, replicas, _run_seconds(job, now)),
        replicas,
        replicas,
        spec.user,
        spec.gpu_type,
        cost,
        rigid=True,
    )


def _work(job: Job) -> float:
    """Base-batch steps that it did. What one that has not ended is still to do, only its script
    believes to know."""
    progress = job.profile.progress
    return max(progress.base_steps, 0.0) if progress is not None else 0.0


def nodes_of(views: Sequence[NodeView]) -> tuple[Node, ...]:
    """The cluster as the daemon sees it, as if all of it were up and empty."""
    return tuple(
        Node(
            NodeId(view.name),
            NodeState.UP,
            devices=tuple(
                Device(
                    DeviceId(device.id), device.index, device.kind, device.type, device.memory_mib
                )
                for device in view.devices
            ),
            cores=view.cores,
            memory_mib=view.memory_mib,
        )
        for view in sorted(views, key=lambda view: view.name)
        if view.devices
    )
