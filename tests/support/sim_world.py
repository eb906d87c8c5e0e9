"""SimWorld: a World for the daemon's own loop. Time jumps to the next event. Machines are a heap of future
events.

Deterministic: the order of scheduling breaks ties. It reports as real jobs do (Started, Profiled,
Exited), so the core decides exactly as it does live.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpq.core.model.actions import Action, Forget, Launch, Prepare, Retune, Stop
from gpq.core.model.events import (
    EnvironmentSeen,
    Event,
    Exited,
    NodeSeen,
    Profiled,
    Started,
    Submitted,
    TimingSums,
)
from gpq.core.model.nodes import Node
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.profile import Noise, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from tests.support.programs import Program, default_batch, gain_of, step_seconds

REPORT_SECONDS = 10.0  # between two reports of a training job
ORDER_SECONDS = 0.5  # until the node has launched or killed a job


@dataclass
class _Run:
    """One attempt in progress."""

    attempt: int
    placement: Placement
    order: BatchOrder
    since: Seconds  # progress is counted up to here
    offset: int = 0
    stopping: bool = False
    over: bool = False


@dataclass
class SimWorld:
    """`programs` in the order of their ids (1, 2, ...). `nodes` are there from the start."""

    programs: Sequence[Program]
    nodes: Sequence[Node]
    clock: Seconds = 0.0
    runs: dict[JobId, _Run] = field(default_factory=dict)
    # base steps (or seconds of a black box) so far
    work: dict[JobId, float] = field(default_factory=dict)
    performed: list[Action] = field(default_factory=list)
    _heap: list[tuple[Seconds, int, Event | JobId]] = field(default_factory=list)
    _counter: int = 0
    _unfinished: int = 0

    def __post_init__(self) -> None:
        self._unfinished = len(self.programs)
        for node in self.nodes:
            self._schedule(self.clock, NodeSeen(self.clock, node))
        for number, program in enumerate(self.programs, 1):
            self._schedule(program.at, Submitted(program.at, JobId(number), program.spec))

    def now(self) -> Seconds:
        return self.clock

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        """Everything that happens at the next moment, or nothing at `until`. None when all jobs
        have ended."""
        if self._unfinished == 0 and not self._heap:
            return None
        if not self._heap or self._heap[0][0] > until:
            self.clock = max(self.clock, until)
            return ()
        self.clock = max(self.clock, self._heap[0][0])
        events: list[Event] = []
        while self._heap and self._heap[0][0] <= self.clock:
            _, _, entry = heapq.heappop(self._heap)
            if isinstance(entry, int):
                events.extend(self._beat(JobId(entry)))
            elif not self._is_stale(entry):
                events.append(entry)
                if isinstance(entry, Exited):
                    self._over(entry)
        return events

    def wake(self) -> None:
        """Nothing waits here: time jumps."""

    def publish(self, snapshot: Snapshot) -> None:
        """Machines that never miss an order need no second check."""

    def perform(self, action: Action) -> None:
        self.performed.append(action)
        match action:
            case Launch():
                self._launch(action)
            case Stop():
                self._stop(action)
            case Retune():
                run = self.runs.get(action.job)
                if run is not None and run.attempt == action.attempt and action.order.seq > run.order.seq:
                    self._count(action.job, run)
                    run.order = action.order
            case Forget():
                pass
            case Prepare():
                self._schedule(
                    self.clock,
                    EnvironmentSeen(self.clock, action.node, action.environment, fit=True),
                )

    def cancelled(self, jobs: Iterable[JobId]) -> None:
        """Jobs that ended without ever exiting (cancelled while they waited)."""
        self._unfinished -= len(list(jobs))

    def _schedule(self, at: Seconds, entry: Event | JobId) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (at, self._counter, entry))

    def _is_stale(self, event: Event) -> bool:
        if not isinstance(event, Started | Exited):
            return False
        run = self.runs.get(event.job)
        return run is None or run.attempt != event.attempt or run.over

    def _launch(self, action: Launch) -> None:
        previous_run = self.runs.get(action.job)
        if previous_run is not None and previous_run.attempt >= action.attempt:
            return  # idempotent by (job, attempt)
        program = self.programs[action.job - 1]
        ready = self.clock + program.start_seconds
        self.runs[action.job] = _Run(action.attempt, action.placement, action.order, ready)
        for node, _ in action.placement.parts:
            seen_at = self.clock + ORDER_SECONDS
            self._schedule(seen_at, Started(seen_at, action.job, action.attempt, node))
        if program.params is None:
            seconds = max(program.seconds - self.work.get(action.job, 0.0), 0.0)
            self._exit(action.job, ready + seconds, Exit(program.exit_code))
        else:
            self._schedule(ready, action.job)

    def _stop(self, action: Stop) -> None:
        run = self.runs.get(action.job)
        if run is None or run.attempt != action.attempt or run.over or (run.stopping and action.mode != "kill"):
            return
        program = self.programs[action.job - 1]
        run.stopping = True
        self._count(action.job, run)
        if action.mode == "kill":
            self._exit(action.job, self.clock + ORDER_SECONDS, Exit(None, signal=15, asked="kill"))
        else:
            self._exit(
                action.job,
                self.clock + program.checkpoint_seconds,
                Exit(0, stopped=True, asked=action.mode),
            )

    def _exit(self, job: JobId, at: Seconds, end: Exit) -> None:
        run = self.runs[job]
        for node, _ in run.placement.parts:
            self._schedule(at, Exited(at, job, run.attempt, node, replace(end, ended_at=at)))

    def _over(self, event: Exited) -> None:
        run = self.runs[event.job]
        if event.node == run.placement.parts[-1][0]:
            run.over = True
            if not event.exit.stopped:
                self._unfinished -= 1

    def _batch(self, program: Program, run: _Run) -> tuple[int, int]:
        if run.order.atomic_batch > 0:
            return run.order.atomic_batch, run.order.accum_steps
        return default_batch(program, run.placement.replicas)

    def _count(self, job: JobId, run: _Run) -> float:
        """Add the time since the last count to the job's progress. Returns the steps done in it."""
        program = self.programs[job - 1]
        seconds = max(self.clock - run.since, 0.0)
        run.since = max(self.clock, run.since)
        if program.params is None:
            self.work[job] = self.work.get(job, 0.0) + seconds
            return 0.0
        atomic, accum = self._batch(program, run)
        _, step = step_seconds(program, run.placement.shape, atomic, accum)
        steps = seconds / step
        total = run.placement.replicas * atomic * (accum + 1)
        self.work[job] = self.work.get(job, 0.0) + steps * gain_of(program, total)
        return steps

    def _beat(self, job: JobId) -> list[Event]:
        """A report of a training job, and its end when its work is done."""
        run, program = self.runs[job], self.programs[job - 1]
        if run.over or run.stopping:
            return []
        steps = self._count(job, run)
        atomic, accum = self._batch(program, run)
        grad, step = step_seconds(program, run.placement.shape, atomic, accum)
        run.offset += 1
        count = max(int(steps), 1)
        accums = count * max(accum, 1)
        shape = run.placement.shape
        sums = TimingSums(
            shape.nodes,
            shape.replicas,
            atomic,
            accum,
            accums,
            grad * accums,
            count,
            (step - accum * grad) * count,
        )
        base_steps = self.work.get(job, 0.0)
        share = 0.0
        if program.base_steps:
            share = min(base_steps / program.base_steps, 1.0)
        timings: tuple[TimingSums, ...] = ()
        noise = None
        if steps > 0:
            timings = (sums,)
            noise = Noise(program.stats.sqr, program.stats.var, samples=1000)
        event = Profiled(
            self.clock,
            job,
            run.attempt,
            run.offset,
            declared=program.declared,
            timings=timings,
            noise=noise,
            progress=Progress(0, max(program.declared.epochs, 1), 0, int(base_steps), base_steps, share),
            ready=run.offset == 1,
            retuned=BatchOrder(run.order.seq, atomic, accum),
            habits=program.habits,
        )
        total = shape.replicas * atomic * (accum + 1)
        seconds = max(program.base_steps - base_steps, 0.0) / gain_of(program, total) * step
        if seconds <= 1e-9:
            self._exit(job, self.clock, Exit(program.exit_code))
        else:
            self._schedule(self.clock + min(REPORT_SECONDS, seconds), job)
        return [event]
