"""The lab's own jobs as tasks of the simulator, with their measurements as the truth.

The work of a training script with a profile is what it did. Everything else takes as long as it
took, on the same number of GPUs. Refuses to guess. A job that never ran or was
cancelled is left out. A job that has not ended is replayed up to its progress so far. A type of GPU
that no job used is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from gpq.control.reader import run_seconds
from gpq.core.goodput.goodput import gain, grad_time, step_time
from gpq.core.goodput.models import Model, model_of
from gpq.core.model.jobs import TERMINAL, DesiredState, Job, JobState
from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Config
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.measurements.timings import NotMeasured
from gpq.rpc.node_answers import NodeView

NAME = "history"  # of this workload, in tables
NONE: Mapping[JobId, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class History:
    """A source: the jobs that can be replayed, and why the others cannot."""

    replayable: tuple[Task, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # (job, why)
    unended: tuple[str, ...] = ()  # replayed up to their progress so far
    gpu_types: tuple[str, ...] = ()  # that they used, if known
    name: str = NAME

    def tasks(self) -> tuple[Task, ...]:
        return self.replayable


def history(
    jobs: Sequence[Job],
    now: Seconds,
    *,
    since: Seconds | None = None,
    restart: Seconds | None = None,
    hold_seconds: Mapping[JobId, Seconds] = NONE,
    gpu_types: Mapping[JobId, Set[str]] = NONE,
) -> History:
    """Jobs submitted in the last `since` seconds. `restart`: for every job, instead of each one's
    measured time. `hold_seconds`: how long its user held it before its first start, because it
    arrives when it was released. `gpu_types`: the types that it used."""
    recent_jobs = [
        job
        for job in sorted(jobs, key=lambda job: (job.submitted_at, job.id))
        if since is None or job.submitted_at >= now - since
    ]
    tasks: list[Task] = []
    left_out: list[tuple[str, str]] = []
    unended: list[str] = []
    types: set[str] = set()
    for job in recent_jobs:
        reason = ""
        if job.attempt == 0:
            reason = "never ran"
        elif job.state is JobState.CANCELLED or job.wish is DesiredState.CANCEL:
            reason = "cancelled"
        elif run_seconds(job, now) <= 0 or _replicas(job) == 0:
            reason = "without run time"
        if reason:
            left_out.append((_name(job), reason))
            continue
        arrival = job.submitted_at - recent_jobs[0].submitted_at + hold_seconds.get(job.id, 0.0)
        tasks.append(_task(job, now, arrival, restart))
        if job.state not in TERMINAL:
            unended.append(_name(job))
        types.update(row.gpu_type for row in job.profile.rows)
        types.update(gpu_types.get(job.id, ()))
    return History(
        tuple(tasks), tuple(left_out), tuple(unended), tuple(sorted(filter(None, types)))
    )


def _name(job: Job) -> str:
    if job.name:
        return f"{job.id} ({job.name})"
    return str(job.id)


def _replicas(job: Job) -> int:
    return job.replicas or job.last_replicas


def _task(job: Job, now: Seconds, arrives: Seconds, restart: Seconds | None) -> Task:
    spec, progress = job.spec, job.profile.progress
    # Steps at the base batch size that it did. If it has not ended, only its script may know what
    # is left.
    work = progress.base_steps if progress is not None else 0.0
    if restart is None:
        restart = Config().restart_cost(job)
    if job.elastic and work > 0 and model_of(job.profile) is not None:
        truth = LearntTruth(_program(job), job.profile, work, spec.max_gpus)
        seconds, mean = run_seconds(job, now), 1
        if seconds > 0:
            mean = round(job.service_at(now) / seconds)
        return Task(
            _name(job),
            arrives,
            truth,
            max(spec.min_gpus, 1, min(mean, spec.max_gpus or mean)),  # within what it asked for
            truth.base_batch,
            spec.user,
            spec.gpu_type,
            restart,
            habits=job.profile.habits,
        )
    replicas = _replicas(job)
    return Task(
        _name(job),
        arrives,
        FixedTruth(_program(job), replicas, run_seconds(job, now)),
        replicas,
        replicas,
        spec.user,
        spec.gpu_type,
        restart,
        rigid=True,
    )


def _program(job: Job) -> str:
    if not job.spec.argv:
        return "job"
    return os.path.basename(job.spec.argv[0])


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


@dataclass(frozen=True, slots=True)
class LearntTruth:
    """An adaptive or resizable training script as gpq's model sees it: its fitted step-time model
    and its latest noise scale. One epoch, as long as all its work."""

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
        if limits.maximum > limits.base:
            return 0
        return limits.base

    def limits(self, gpu_type: str = "") -> tuple[int, int]:
        limits = self._model(gpu_type).limits
        return limits.min_atomic, limits.max_atomic

    def measured(self, counts: tuple[int, ...], gpu_type: str = "") -> tuple[int, int]:
        """Like `limits`, because a model answers for every shape."""
        return self.limits(gpu_type)

    def times(
        self, counts: tuple[int, ...], atomic: float, gpu_type: str = ""
    ) -> tuple[Seconds, Seconds]:
        params = self._model(gpu_type).params
        step = float(step_time(params, len(counts), sum(counts), atomic))
        return step, max(step - float(grad_time(params, atomic)), 0.0)

    def stats(self, total_batch: float, epoch: int) -> tuple[float, float]:
        """Constant. Without a noise scale a larger batch is worth no more than the base batch
        size."""
        model = self._model("")
        if model.stats is None:
            return 1.0, 0.0
        return model.stats.sqr, model.stats.var / model.limits.base

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
        """As logged, the lowest so far, scaled from 1 to 0. A straight line if none was logged."""
        points = self.profile.losses
        steps, losses = [0.0, self.work], np.array([1.0, 0.0])
        lowest = np.minimum.accumulate([point.loss for point in points])
        if len(points) >= 2 and np.isfinite(lowest).all() and lowest[0] > lowest[-1]:
            steps = [point.base_steps for point in points]
            losses = (lowest - lowest[-1]) / (lowest[0] - lowest[-1])
        return float(np.interp(progress, steps, losses))

    def _model(self, gpu_type: str) -> Model:
        model = model_of(self.profile, gpu_type)
        assert model is not None  # `history` checked this
        return model


@dataclass(frozen=True, slots=True)
class FixedTruth:
    """A black box: `seconds` long on `replicas` GPUs. On fewer, which it never gets, they would
    take turns. Finish-time fairness compares with that."""

    name: str
    replicas: int
    seconds: Seconds
    epochs: int = 1

    @property
    def base_batch(self) -> int:
        return self.replicas

    max_batch = fixed_batch = most_replicas = base_batch

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
