"""A workload under a policy, in simulated time: the policy and placement code of the daemon on the physics of `running`.

Daemon and artifact differ in the life of a job (the artifact stops and restarts in one instant), so this loop keeps its own
jobs, and shows them to the policy as the daemon would.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpq.core import estimates
from gpq.core.models import (
    BatchOrder,
    Config,
    Declared,
    Job,
    JobId,
    JobSpec,
    JobState,
    Level,
    Node,
    NodeId,
    Placement,
    Prior,
    Profile,
    ProfileRow,
    Progress,
    Seconds,
    Snapshot,
)
from gpq.core.placement import place
from gpq.core.policy import Policy
from gpq.core.priors import remember, timed
from gpq.core.tuning import typed
from gpq.errors import Refused
from gpq.policies.registry import Entry, entry, policy
from gpq.sim.alone import Alone
from gpq.sim.oracle import TrueOracle
from gpq.sim.outcomes import JobOutcome, Outcome
from gpq.sim.rules import Rules
from gpq.sim.running import Batch, Running, geometric_batches
from gpq.sim.truth import Task

PROFILED_BATCHES = 10  # atomic batches of a one-GPU profile on arrival
IDLE_ROUNDS = 100_000  # without any job holding a GPU: the policy starves them
_EPSILON = 1e-9

Array = NDArray[np.float64]


@dataclass
class _Guest:
    """One job of the run: its physics, and what the policy sees of it."""

    running: Running
    job: Job
    first_start: Seconds | None = None
    restarts: int = -1  # the first start is none
    sizes: list[tuple[Seconds, int]] = field(default_factory=list)
    seen: int = -1  # of what it measured, the part that is in `job`


def replay(
    name: str,
    tasks: Sequence[Task],
    rules: Rules,
    *,
    workload: str = "",
    watch: Callable[[float], None] | None = None,
) -> Outcome:
    """Run all `tasks` to their ends under the policy called `name`.

    `watch` gets the share of the jobs that have ended. Raises UsageError for an unknown policy, Refused when a job can
    never run on these nodes.
    """
    began = time.perf_counter()
    run = Replay(entry(name), policy(name), tasks, rules)
    while run.left:
        run.round()
        if watch is not None:
            watch(1.0 - run.left / len(tasks))
    return Outcome(
        name,
        workload,
        rules.seed,
        sum(len(node.devices) for node in rules.nodes),
        run.outcomes(),
        tuple(run.round_seconds),
        run.mean_goodput(),
        time.perf_counter() - began,
    )


class Replay:
    """The state of a run between two rounds."""

    def __init__(self, traits: Entry, policy: Policy, tasks: Sequence[Task], rules: Rules) -> None:
        self.traits, self.policy, self.rules = traits, policy, rules
        self.config: Config = replace(
            rules.config,
            interval=rules.interval,
            seed=rules.seed,
            events=rules.events,
            use_priors=rules.config.use_priors and rules.priors,
            settle_seconds=0.0,
        )
        self.nodes: dict[NodeId, Node] = {node.id: node for node in rules.nodes}
        self.to_come = sorted(enumerate(tasks, 1), key=lambda item: (item[1].at, item[0]))[::-1]
        self.left = len(tasks)
        self.now: Seconds = 0.0
        self.guests: dict[JobId, _Guest] = {}
        self.ended: dict[JobId, _Guest] = {}
        self.priors: Mapping[str, Prior] = {}
        self.round_seconds: list[Seconds] = []
        self.types = sorted({device.type for node in rules.nodes for device in node.devices})
        sizes: dict[str, int] = {}
        for node in rules.nodes:
            for kind in {device.type for device in node.devices}:
                count = sum(device.type == kind for device in node.devices)
                sizes[kind] = max(sizes.get(kind, 0), count)
        self.node_sizes = sizes if len(sizes) > 1 else {"": max(sizes.values())}
        self.alone = Alone(rules.nodes)
        self._goodput = self._goodput_seconds = 0.0
        self._idle = 0

    # -- time ----------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """On to the next moment that calls for a round, and hold it."""
        until = self._next_moment()
        self._advance(until - self.now)
        self.now = until
        self._arrive()
        if self.guests:
            self._allocate()
        self._check_progress()

    def _next_moment(self) -> Seconds:
        tick = (np.floor(self.now / self.rules.interval + _EPSILON) + 1.0) * self.rules.interval
        arrival = self.to_come[-1][1].at if self.to_come else np.inf
        if not self.rules.events:
            if not self.guests and arrival > tick:  # nothing to do until the first tick at or after it
                tick = max(tick, np.ceil(arrival / self.rules.interval - _EPSILON) * self.rules.interval)
            return float(tick)
        moments = [float(tick) if self.guests else np.inf, max(arrival, self.now)]
        shared = self._sharing()
        for name, guest in self.guests.items():
            running = guest.running
            moments.append(self.now + running.seconds_to_end(shared.get(name, 0.0)))
            if running.waiting > 0:
                moments.append(self.now + running.waiting + 1.0)  # its first step times come in
        return float(max(min(moments), self.now))

    def _advance(self, seconds: Seconds) -> None:
        shared = self._sharing()
        for name in sorted(self.guests):
            guest = self.guests[name]
            self._count_goodput(guest, seconds)
            guest.running.advance(self.now, seconds, shared.get(name, 0.0), partial(self._batch, guest))
            if guest.running.ended_at is not None:
                self._end(name)

    def _count_goodput(self, guest: _Guest, seconds: Seconds) -> None:
        if guest.running.placement is not None:
            one = self.alone.speed_on_one(guest.running.task.truth, guest.running.gpu_type, guest.running.epoch)
            if one > 0:
                self._goodput += seconds * guest.running.speed(0.0) * guest.running.task.slowdown / one
            self._goodput_seconds += seconds

    def _sharing(self) -> dict[JobId, float]:
        """Slowdown of the multi-node jobs that share a node with another one."""
        if self.rules.interference <= 0:
            return {}
        spans = {
            name: [node for node, _ in guest.running.placement.parts]
            for name, guest in self.guests.items()
            if guest.running.placement is not None and len(guest.running.counts) > 1
        }
        crowd = Counter(node for nodes in spans.values() for node in nodes)
        return {name: self.rules.interference for name, nodes in spans.items() if any(crowd[n] > 1 for n in nodes)}

    def _arrive(self) -> None:
        while self.to_come and self.to_come[-1][1].at <= self.now + _EPSILON:
            number, task = self.to_come.pop()
            rng = np.random.default_rng([self.rules.seed, number]) if self.rules.noise > 0 else None
            fixed = task.batch_size if self.traits.own_batch else task.truth.fixed_batch
            running = Running(task, fixed, rng, self.rules.noise)
            if self.rules.profiled:
                self._profile(running)
            job = Job(JobId(number), self._spec(task), task.at, profile=Profile(self._declared(task, fixed)))
            self.guests[JobId(number)] = _Guest(running, job)

    def _end(self, name: JobId) -> None:
        guest = self.ended[name] = self.guests.pop(name)
        assert guest.running.ended_at is not None
        guest.sizes.append((guest.running.ended_at, 0))
        self.left -= 1
        if self.config.use_priors:
            self.priors = remember(self.priors, [self._seen(guest)])

    # -- what the policy sees ------------------------------------------------------------------------------------------

    def _spec(self, task: Task) -> JobSpec:
        most = task.truth.most_replicas
        gang = self.traits.gang or task.rigid
        return JobSpec(
            (f"{task.truth.name}.py",),
            "/",
            task.user,
            0,
            Level.SCRIPT,
            task.name,
            min_gpus=task.replicas if gang else 1,
            max_gpus=task.replicas if gang else most,
            rigid=task.rigid,
            gpu_type=task.gpu_type,
        )

    def _declared(self, task: Task, fixed: int) -> Declared:
        truth = task.truth
        base = fixed or truth.base_batch
        least, most = truth.limits(self.types[0])
        by_type = tuple((kind, *truth.limits(kind)) for kind in self.types) if len(self.types) > 1 else ()
        work = truth.progress(truth.epochs) * truth.base_batch
        return Declared(
            adaptive=not fixed,
            batch_size=base,
            max_batch_size=truth.max_batch if not fixed else base,
            min_atomic_batch=least,
            max_atomic_batch=most,
            dataset_size=round(work / truth.epochs) if self.rules.known_length else 0,
            epochs=truth.epochs if self.rules.known_length else 0,
            accumulate_alone=True,
            statistical=True,
            atomic_by_type=by_type,
        )

    def _profile(self, running: Running) -> None:
        """One-GPU step times of each type, as a job of Sia's artifact arrives with them."""
        truth = running.task.truth
        for kind in self.types:
            least, most = truth.limits(kind)
            for atomic in geometric_batches(least, most, PROFILED_BATCHES):
                step, sync = truth.times((1,), atomic, kind)
                running.rows[kind, 1, 1, atomic] = ProfileRow(1, 1, atomic, step - sync, step, 10.0, kind)
        running.measured += 1

    def _seen(self, guest: _Guest) -> Job:
        """The job as its reports have it up to now."""
        running, job = guest.running, guest.job
        if guest.seen == running.measured and not self.rules.known_length:
            return job
        profile = job.profile
        if guest.seen != running.measured:
            rows = tuple(running.rows[key] for key in sorted(running.rows))
            profile = replace(
                profile,
                rows=rows,
                noise=running.noise,
                early_noise=profile.early_noise or running.noise,
                noise_curve=running.noise_curve,
            )
            guest.seen = running.measured
        if self.rules.known_length:
            epochs = running.task.truth.epochs
            profile = replace(
                profile, progress=Progress(running.epoch, epochs, 0, 0, running.progress, running.fraction)
            )
        guest.job = replace(job, profile=profile)
        return guest.job

    def _batch(self, guest: _Guest) -> Batch | None:
        """The batch that gpq would order now; None while nothing is known."""
        running = guest.running
        if running.fixed_batch or running.placement is None:
            return None
        job = self._seen(guest)
        job = timed(job, Snapshot(config=self.config, priors=self.priors))
        bounds = running.bounds()
        if bounds != running.task.truth.limits(running.gpu_type):  # the measurements do not reach as far as the limits
            assert job.profile.declared is not None
            least, most = bounds
            here = replace(job.profile.declared, min_atomic_batch=least, max_atomic_batch=most, atomic_by_type=())
            job = replace(job, profile=replace(job.profile, declared=here))
        choice = estimates.best_batch(job, typed(running.placement))
        return (choice.atomic_batch, choice.accum_steps) if choice is not None else None

    # -- rounds --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        jobs = {name: self._shown(self.guests[name]) for name in sorted(self.guests)}
        oracles = {name: TrueOracle(self.guests[name].running, self.node_sizes) for name in jobs}
        return Snapshot(self.now, self.config, self.nodes, jobs, max(jobs) + 1, self.now, self.priors, oracles)

    def _shown(self, guest: _Guest) -> Job:
        job, running = self._seen(guest), guest.running
        state = job.state
        if job.placement is not None:
            # Between events a restart is not disturbed; the timer alone comes as it comes (as in the artifact).
            state = JobState.STARTING if self.rules.events and running.waiting > 0 else JobState.RUNNING
        service = running.service
        held = max(self.now - job.launched_at, 0.0) * running.replicas if job.launched_at is not None else 0.0
        if state is not job.state or job.service != service - held:
            guest.job = job = replace(job, state=state, service=service - held)
        return job

    def _allocate(self) -> None:
        snapshot = self.snapshot()
        began = time.process_time()
        allotted = self.policy.allocate(snapshot)
        placed = place(snapshot, allotted)
        self.round_seconds.append(time.process_time() - began)
        for name in sorted(self.guests):
            guest = self.guests[name]
            if placed.get(name) != guest.running.placement:
                self._move(guest, placed.get(name))
            elif guest.running.placement is not None:
                guest.running.set_batch(self._batch(guest))

    def _move(self, guest: _Guest, placement: Placement | None) -> None:
        running = guest.running
        running.start(placement, running.task.restart)
        guest.sizes.append((self.now, running.replicas))
        if placement is None:
            guest.job = replace(
                guest.job, placement=None, state=JobState.PENDING, launched_at=None, started_at=None,
                service=running.service,
            )  # fmt: skip
            return
        guest.restarts += 1
        guest.first_start = self.now if guest.first_start is None else guest.first_start
        guest.job = replace(
            guest.job,
            placement=placement,
            state=JobState.RUNNING,
            attempt=guest.job.attempt + 1,
            launched_at=self.now,
            started_at=self.now,
            first_started_at=guest.first_start,
            started_nodes=tuple(node for node, _ in placement.parts),
            restarts=max(guest.restarts, 0),
            restart_seconds=running.task.restart if guest.restarts > 0 else None,
            last_replicas=placement.replicas,
            service=running.service,
            order=BatchOrder(guest.job.order.seq + 1),
        )
        running.set_batch(self._batch(guest))

    def _check_progress(self) -> None:
        busy = any(guest.running.placement is not None for guest in self.guests.values())
        self._idle = 0 if busy or not self.guests else self._idle + 1
        if self._idle > IDLE_ROUNDS or (self._idle > 10 and not self.to_come):
            names = ", ".join(guest.running.task.name for guest in list(self.guests.values())[:3])
            raise Refused(
                f"{self.policy.name} gives no GPU to {names}: no node of this cluster fits what is asked for",
                "give larger nodes, or a workload that asks for fewer GPUs",
            )

    # -- results -------------------------------------------------------------------------------------------------------

    def outcomes(self) -> tuple[JobOutcome, ...]:
        guests = [self.ended[name] for name in sorted(self.ended)]
        begins = np.array([guest.running.task.at for guest in guests])
        ends = np.array([guest.running.ended_at for guest in guests], dtype=np.float64)
        return tuple(self._outcome(guest, begins, ends) for guest in guests)

    def _outcome(self, guest: _Guest, begins: Array, ends: Array) -> JobOutcome:
        task, running = guest.running.task, guest.running
        ended = running.ended_at or self.now
        together = np.clip(np.minimum(ends, ended) - np.maximum(begins, task.at), 0.0, None).sum()
        alone = self.alone.seconds(task, max(float(together) / max(ended - task.at, _EPSILON), 1.0))
        return JobOutcome(
            task.name,
            task.truth.name,
            task.user,
            task.at,
            guest.first_start if guest.first_start is not None else ended,
            ended,
            max(guest.restarts, 0),
            running.service,
            (ended - task.at) / alone if alone else None,
            tuple(guest.sizes),
        )

    def mean_goodput(self) -> float:
        return self._goodput / self._goodput_seconds if self._goodput_seconds > 0 else 0.0
