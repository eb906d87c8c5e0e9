"""One job of a replay: its physics, and what the policy sees of it, as the daemon would show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpq.core.freedoms import with_habits
from gpq.core.goodput import estimates
from gpq.core.model.accounts import AttemptAccount, Gain, Promise, Saving
from gpq.core.model.jobs import Job, JobSpec, JobState, Level
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.policy import Policy
from gpq.core.model.profile import (
    RESIZE,
    RETUNE,
    Declared,
    LossPoint,
    Profile,
    ProfileRow,
    Progress,
)
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.batch_orders import typed_shape
from gpq.core.rounds.motives import goodput_ratio
from gpq.core.state.learn_profile import MOST_GAINS, with_losses
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.simulator import lies
from gpq.lab.simulator.physics import Batch, Running, geometric_batches
from gpq.lab.simulator.rules import Rules

PROFILED_BATCHES = 10  # micro-batches of a one-GPU profile on arrival
# steps of each measurement, which count for less than any measurement in the run
PROFILED_WEIGHT = 10.0


@dataclass
class SimJob:
    """One job that has arrived."""

    running: Running
    job: Job  # as last shown
    rules: Rules
    # with what earlier jobs of its program measured, to choose its batch size
    taught: Callable[[Job], Job]
    logs_loss: bool = False
    first_start: Seconds | None = None
    restarts: int = -1  # the first start does not count
    sizes: list[tuple[Seconds, int]] = field(default_factory=list)
    reported: int = -1  # the part of its measurements that is in `job`
    last_speed: float | None = None  # true one, just before it lost the last of its GPUs or changed
    growths: Saving = field(default_factory=Saving)

    def seen(self) -> Job:
        """The job according to its reports up to now."""
        running, job = self.running, self.job
        profile = job.profile
        if self.reported != running.measured:
            rows = tuple(running.rows[key] for key in sorted(running.rows))
            profile = replace(
                profile,
                rows=rows,
                noise=running.noise,
                early_noise=profile.early_noise or running.noise,
                noise_curve=running.noise_curve,
            )
            profile = lies.measurements(profile, running.task.lies)
            self.reported = running.measured
        progress = Progress(running.epoch, 0, 0, 0, running.progress, 0.0)
        if self.rules.known_length:
            epochs = running.task.truth.epochs
            progress = replace(progress, epochs=epochs, fraction=running.fraction)
        profile = replace(profile, progress=progress)
        self.job = replace(job, profile=profile)
        return self.job

    def shown(self, now: Seconds) -> Job:
        """The job as it appears in the snapshot of a round."""
        running, losses = self.running, self.job.profile.losses
        if self.logs_loss and running.progress > (losses[-1].base_steps if losses else -1.0):
            truth = running.task.truth
            total = float(running.total_batch() or running.fixed_batch or truth.base_batch)
            point = LossPoint(running.progress, truth.loss(total, running.progress))
            self.job = replace(
                self.job, profile=replace(self.job.profile, losses=with_losses(losses, (point,)))
            )
        job = self.seen()
        state = job.state
        if job.placement is not None:
            # Events do not disturb a restart. The timer runs anyway (as in the artifact).
            state = JobState.RUNNING
            if self.rules.events and running.waiting > 0:
                state = JobState.STARTING
        attempt_service = 0.0
        if job.launched_at is not None:
            attempt_service = max(now - job.launched_at, 0.0) * running.replicas
        if state is not job.state or job.service != running.service - attempt_service:
            self.job = job = replace(job, state=state, service=running.service - attempt_service)
        return lies.claims(job, now, running.task.lies)

    def batch(self) -> Batch | None:
        """The batch size that gpq would order now. None while nothing is known."""
        running = self.running
        if running.fixed_batch or running.placement is None:
            return None
        job = self.taught(self.seen())
        bounds = running.bounds()
        if bounds != running.task.truth.limits(running.gpu_type):
            # the measurements end before the limits
            assert job.profile.declared is not None
            least, most = bounds
            declaration = replace(
                job.profile.declared,
                min_atomic_batch=least,
                max_atomic_batch=most,
                atomic_by_type=(),
            )
            job = replace(job, profile=replace(job.profile, declared=declaration))
        choice = estimates.best_batch(job, typed_shape(running.placement))
        if choice is None:
            return None
        return choice.atomic_batch, choice.accum_steps

    def settle_gain(self) -> None:
        """Note what the last resize brought, once the job trains again. The speed is the true
        one."""
        running, gains = self.running, self.job.gains
        if running.placement is None or running.waiting > 0 or not gains:
            return
        if gains[-1].attempt == self.job.attempt and gains[-1].speed_after is None:
            gain = replace(gains[-1], speed_after=running.speed())
            self.job = replace(self.job, gains=(*gains[:-1], gain))

    def close(self, now: Seconds) -> None:
        """Book what the attempt, if there is one, has saved."""
        job = self.job
        if job.launched_at is None:
            return
        for gain in job.gains[-1:]:
            if gain.attempt == job.attempt:
                tally = AttemptAccount(promised=gain.promise.ratio, measured=gain.measured)
                self.growths += tally.saving(now - job.launched_at)

    def _promise(self, placement: Placement) -> Promise | None:
        job = self.taught(self.seen())
        if not job.attempt or placement.replicas == job.last_replicas:
            return None
        ratio = goodput_ratio(job, placement)
        if ratio is None:
            return None
        return Promise(ratio, self.running.task.restart)

    def move(self, now: Seconds, placement: Placement | None) -> None:
        """Give it these GPUs, or none."""
        running = self.running
        self.close(now)
        if running.placement is not None and running.waiting <= 0:
            self.last_speed = running.speed()
        gains = self.job.gains
        promise = self._promise(placement) if placement is not None else None
        if placement is not None and promise is not None:
            gain = Gain(
                now,
                self.job.attempt + 1,
                self.job.last_replicas,
                placement.replicas,
                promise,
                self.last_speed,
            )
            gains = (*gains, gain)[-MOST_GAINS:]
        running.start(placement, running.task.restart)
        self.sizes.append((now, running.replicas))
        if placement is None:
            self.job = replace(
                self.job, placement=None, state=JobState.PENDING, launched_at=None, started_at=None,
                service=running.service,
            )  # fmt: skip
            return
        self.restarts += 1
        if self.first_start is None:
            self.first_start = now
        self.job = replace(
            self.job,
            placement=placement,
            state=JobState.RUNNING,
            attempt=self.job.attempt + 1,
            launched_at=now,
            started_at=now,
            first_started_at=self.first_start,
            started_nodes=running.nodes,
            restarts=self.restarts,
            restart_seconds=running.task.restart if self.restarts > 0 else None,
            last_replicas=placement.replicas,
            gains=gains,
            service=running.service,
            order=BatchOrder(self.job.order.seq + 1),
        )
        running.set_batch(self.batch())


def arrive(
    number: JobId,
    task: Task,
    policy: Policy,
    rules: Rules,
    types: Sequence[str],
    taught: Callable[[Job], Job],
) -> SimJob:
    """A job just submitted to this policy, on a cluster of GPUs of these `types`."""
    rng = None
    if rules.noise > 0:
        rng = np.random.default_rng([rules.seed, number])
    fixed_batch = task.truth.fixed_batch  # the only batch size that it trains with. 0: any
    if policy.own_batch:
        fixed_batch = task.batch_size
    if not fixed_batch and task.has_lost(RETUNE):
        fixed_batch = task.truth.base_batch
    running = Running(task, fixed_batch, rng, rules.noise)
    if rules.profiled:
        _profile(running, types)
    profile = Profile(_declaration(task, fixed_batch, rules, types))
    if task.habits:
        profile = with_habits(profile, task.habits)
    least, most = 1, task.truth.most_replicas
    if policy.gang or task.rigid or task.has_lost(RESIZE):
        least, most = task.replicas, task.replicas
    spec = JobSpec(
        (f"{task.truth.name}.py",),
        "/",
        user=task.user,
        uid=0,
        level=Level.SCRIPT,
        name=task.name,
        min_gpus=least,
        max_gpus=most,
        rigid=task.rigid,
        gpu_type=task.gpu_type,
    )
    job = Job(number, spec, task.at, profile=profile)
    return SimJob(running, job, rules, taught, logs_loss=policy.by_loss)


def _declaration(task: Task, fixed_batch: int, rules: Rules, types: Sequence[str]) -> Declared:
    truth = task.truth
    least, most = truth.limits(types[0])
    by_type: tuple[tuple[str, int, int], ...] = ()
    if len(types) > 1:
        by_type = tuple((kind, *truth.limits(kind)) for kind in types)
    dataset_size, epochs = 0, 0
    if rules.known_length:
        work = truth.progress(truth.epochs) * truth.base_batch
        dataset_size, epochs = round(work / truth.epochs), truth.epochs
    return Declared(
        adaptive=not fixed_batch,
        batch_size=fixed_batch or truth.base_batch,
        max_batch_size=fixed_batch or truth.max_batch,
        min_atomic_batch=least,
        max_atomic_batch=most,
        dataset_size=dataset_size,
        epochs=epochs,
        accumulate_alone=True,
        atomic_by_type=by_type,
    )


def _profile(running: Running, types: Sequence[str]) -> None:
    """One-GPU step times of each type, which a job of Sia's artifact has when it arrives."""
    truth = running.task.truth
    for kind in types:
        least, most = truth.limits(kind)
        for atomic in geometric_batches(least, most, PROFILED_BATCHES):
            step, sync = truth.times((1,), atomic, kind)
            running.rows[kind, 1, 1, atomic] = ProfileRow(
                1, 1, atomic, step - sync, step, PROFILED_WEIGHT, kind
            )
    running.measured += 1
