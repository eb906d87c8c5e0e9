"""A workload under a policy, in simulated time: the policy and placement code of the daemon on the
physics of `physics`.

Daemon and artifact differ in the life of a job, because the artifact stops and restarts in one
instant. So this loop keeps its own jobs, and shows them to the policy as the daemon would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.priors import remember, with_times
from gpq.core.model.accounts import Standing
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import ACCUMULATE, Prior
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.rounds.rounds import make_offer
from gpq.core.sharing.division import divide
from gpq.errors import Refused
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.measurements.timings import NotMeasured
from gpq.lab.simulator.outcomes import Alone, JobOutcome, Outcome
from gpq.lab.simulator.physics import Running
from gpq.lab.simulator.rules import Rules
from gpq.lab.simulator.sim_job import SimJob, arrive
from gpq.policies.registry import policy

Array = NDArray[np.float64]
IDLE_ROUNDS = 100_000  # rounds without any job on a GPU, so the policy starves them
IDLE_AT_THE_END = 10  # the same when no job is to come, so that nothing will change
FIRST_TIMES: Seconds = 1.0  # from the first step of an attempt to the round that its times trigger
_EPSILON = 1e-9
_SLACK = 1e-8


def replay(
    name: str,
    tasks: Sequence[Task],
    rules: Rules,
    *,
    workload: str = "",
    watch: Callable[[float], None] | None = None,
) -> Outcome:
    """Run all `tasks` to their ends under the policy `name`.

    `watch` gets the share of the jobs that have ended. Raises UsageError for an unknown policy,
    Refused if a job can never run on these nodes, or if the policy answers wrongly.
    """
    start = time.perf_counter()
    rules = replace(rules, config=replace(rules.config, policy=name))
    run = Replay(policy(name), tasks, rules)
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
        time.perf_counter() - start,
    )


class Replay:
    """The state of a run between two rounds."""

    def __init__(self, policy: Policy, tasks: Sequence[Task], rules: Rules) -> None:
        self.policy, self.rules = policy, rules
        self.config: Config = replace(
            rules.config,
            interval=rules.interval,
            seed=rules.seed,
            events=rules.events,
            settle_seconds=0.0,
        )
        self.nodes: dict[NodeId, Node] = {node.id: node for node in rules.nodes}
        self.to_come = sorted(enumerate(tasks, 1), key=lambda item: (item[1].at, item[0]))[::-1]
        self.left = len(tasks)
        self.now: Seconds = 0.0
        self.guests: dict[JobId, SimJob] = {}
        self.ended: dict[JobId, SimJob] = {}
        self.priors: Mapping[str, Prior] = {}
        self.standings: Mapping[str, Standing] = {}
        self.standings_at: Seconds = 0.0
        self.round_seconds: list[Seconds] = []
        self.alone = Alone(rules.nodes)
        self.types = tuple(self.alone.sizes)
        self.node_sizes = {kind: sizes[0] for kind, sizes in self.alone.sizes.items()}
        self._goodput = self._goodput_seconds = 0.0
        self._idle = 0

    # -- time --------------------------------------------------------------------------------------

    def round(self) -> None:
        """Go to the next moment that needs a round, and run it."""
        until = self._next_moment()
        self._advance(until - self.now)
        self.now = until
        while self.to_come and self.to_come[-1][1].at <= self.now + _EPSILON:
            number, task = self.to_come.pop()
            self.guests[JobId(number)] = arrive(
                JobId(number), task, self.policy, self.rules, self.types, self._teach
            )
        if self.guests:
            self._allocate()
        busy = any(guest.running.placement is not None for guest in self.guests.values())
        self._idle = 0 if busy or not self.guests else self._idle + 1
        if self._idle > IDLE_ROUNDS or (self._idle > IDLE_AT_THE_END and not self.to_come):
            names = ", ".join(guest.running.task.name for guest in list(self.guests.values())[:3])
            raise Refused(
                f"{self.policy.name} gives no GPUs to {names}: no node of this cluster fits what is"
                " asked for",
                "give larger nodes, or a workload that asks for fewer GPUs",
            )

    def _teach(self, job: Job) -> Job:
        return with_times(job, Snapshot(config=self.config, priors=self.priors))

    def _next_moment(self) -> Seconds:
        tick = (np.floor(self.now / self.rules.interval + _EPSILON) + 1.0) * self.rules.interval
        arrival = np.inf
        if self.to_come:
            arrival = self.to_come[-1][1].at
        if not self.rules.events:
            if not self.guests and arrival > tick:
                # nothing to do until the first tick at or after it
                tick = max(
                    tick, np.ceil(arrival / self.rules.interval - _EPSILON) * self.rules.interval
                )
            return float(tick)
        moments = [float(tick) if self.guests else np.inf, max(arrival, self.now)]
        for guest in self.guests.values():
            running = guest.running
            moments.append(self.now + running.seconds_to_end())
            if running.waiting > 0:
                moments.append(self.now + running.waiting + FIRST_TIMES)
        return float(max(min(moments), self.now))

    def _advance(self, seconds: Seconds) -> None:
        for name in sorted(self.guests):
            guest, running = self.guests[name], self.guests[name].running
            if running.placement is not None:
                unit_speed = self.alone.speed_on_one(
                    running.task.truth, running.gpu_type, running.epoch
                )
                if unit_speed > 0:
                    self._goodput += seconds * running.speed() * running.task.slowdown / unit_speed
                self._goodput_seconds += seconds
            running.advance(self.now, seconds, guest.batch)
            guest.settle_gain()
            if running.ended_at is None:
                continue
            self.ended[name] = self.guests.pop(name)
            guest.close(running.ended_at)
            guest.sizes.append((running.ended_at, 0))
            self.left -= 1
            if self.rules.priors:
                job = replace(guest.seen(), state=JobState.COMPLETED)
                self.priors = remember(self.priors, [job])

    # -- rounds ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        jobs = {name: self.guests[name].shown(self.now) for name in sorted(self.guests)}
        oracles = {name: TrueOracle(self.guests[name].running, self.node_sizes) for name in jobs}
        here = Snapshot(
            self.now, self.config, self.nodes, jobs, max(jobs) + 1, self.now, self.priors, oracles
        )
        return replace(here, standings=self.standings, standings_at=self.standings_at)

    def _allocate(self) -> None:
        snapshot = self.snapshot()
        start = time.process_time()
        view, mover = make_offer(snapshot)
        division = divide(view, self.policy)
        if mover is not None and mover not in division.placements:
            view, _ = make_offer(snapshot, moving=False)
            division = divide(view, self.policy)
        self.round_seconds.append(time.process_time() - start)
        placements, self.standings = division.placements, division.standings
        self.standings_at = self.now
        for name in sorted(self.guests):
            guest = self.guests[name]
            if placements.get(name) != guest.running.placement:
                guest.move(self.now, placements.get(name))
            elif guest.running.placement is not None:
                guest.running.set_batch(guest.batch())

    # -- results -----------------------------------------------------------------------------------

    def outcomes(self) -> tuple[JobOutcome, ...]:
        guests = [self.ended[name] for name in sorted(self.ended)]
        begins = np.array([guest.running.task.at for guest in guests])
        ends = np.array([guest.running.ended_at for guest in guests], dtype=np.float64)
        outcomes = []
        for guest in guests:
            task, running = guest.running.task, guest.running
            end, start = running.ended_at, guest.first_start
            assert end is not None
            assert start is not None
            overlap = np.clip(np.minimum(ends, end) - np.maximum(begins, task.at), 0.0, None).sum()
            alone_seconds = self.alone.seconds(
                task, max(float(overlap) / max(end - task.at, _EPSILON), 1.0)
            )
            outcomes.append(
                JobOutcome(
                    task.name,
                    task.truth.name,
                    task.user,
                    task.at,
                    start,
                    end,
                    max(guest.restarts, 0),
                    running.service,
                    (end - task.at) / alone_seconds if alone_seconds else None,
                    tuple(guest.sizes),
                    guest.growths,
                    task.lies,
                )
            )
        return tuple(outcomes)

    def mean_goodput(self) -> float:
        if self._goodput_seconds <= 0:
            return 0.0
        return self._goodput / self._goodput_seconds


@dataclass(frozen=True, slots=True)
class TrueOracle:
    """What policies that were published with an oracle (Optimus+Oracle, Gavel) know of one job:
    true times and the true work left, at the batch size that it asked for. Answers for packed
    shapes: full nodes of `node_sizes`, then the rest."""

    job: Running
    node_sizes: Mapping[str, int]  # GPUs of the largest node of each type

    @property
    def remaining_steps(self) -> float:
        """Optimiser steps left at the requested batch size, from the end of the present epoch (as
        in the artifact), at least one."""
        truth, batch = self.job.task.truth, self._total()
        past_steps = truth.iterations(batch, min(self.job.epoch + 1, truth.epochs))
        return max(truth.iterations(batch, truth.epochs) - past_steps, 1.0)

    def step_seconds(self, shape: Shape) -> Seconds | None:
        truth, batch = self.job.task.truth, self._total()
        gpu_type = shape.gpu_type
        if not gpu_type:  # a shape does not name the only type
            [gpu_type] = self.node_sizes
        size = self.node_sizes[gpu_type]
        remainder = shape.replicas % size
        counts = (size,) * (shape.replicas // size)
        if remainder:
            counts = (*counts, remainder)
        try:
            least, most = truth.measured(counts, gpu_type)
        except NotMeasured:
            return None
        local = ceil(batch / shape.replicas - _SLACK)
        accum = ceil(local / most - _SLACK) - 1
        if self.job.task.has_lost(ACCUMULATE):
            if accum > 0:
                return None
        elif shape.replicas == 1:
            accum = max(accum, 1)
        atomic = min(
            ceil(local / (accum + 1) - _SLACK),
            max(truth.max_batch, batch) // (shape.replicas * (accum + 1)),
        )
        if atomic < least:
            return None
        step, sync = truth.times(counts, atomic, gpu_type)
        return (step + accum * (step - sync)) * self.job.task.slowdown

    def _total(self) -> int:
        truth = self.job.task.truth
        return self.job.fixed_batch or self.job.task.batch_size or truth.base_batch
