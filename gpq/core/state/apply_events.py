"""fold(): facts -> the next snapshot. Stale news (of an older attempt, of a job that ended) changes
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpq.core.accounting import accrual
from gpq.core.feasibility import environments, gates, idle_gpus, owners
from gpq.core.feasibility.checkpoints import with_rate
from gpq.core.freedoms import habits
from gpq.core.goodput import priors
from gpq.core.model.events import (
    CancelAsked,
    Cancelled,
    Edited,
    EnvironmentSeen,
    Event,
    Exited,
    Failed,
    Held,
    HoldAsked,
    Idled,
    Launched,
    LinkMeasured,
    NodeDrained,
    NodeRemoved,
    NodeReserved,
    NodeSeen,
    NodeSilent,
    NodeUndrained,
    NodeUnreserved,
    Profiled,
    Pulsed,
    ReleaseAsked,
    Released,
    RequeueAsked,
    Retuned,
    Staged,
    Started,
    StartRefused,
    Stopped,
    StopSent,
    Submitted,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState, StopReason, Wish
from gpq.core.model.nodes import Link, Node, NodeState, Reservation
from gpq.core.model.placements import Exit, FilesAt
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.state import learn_profile
from gpq.core.state.lifecycle import advance, conclude, preempted

MAX_NOTICES = 12


@dataclass(frozen=True, slots=True)
class Folded:
    """`journal`: the events with what was concluded from them; `ended`: final values of jobs that
    left the snapshot."""

    snapshot: Snapshot
    journal: tuple[Event, ...]
    ended: tuple[Job, ...]


def fold(
    snapshot: Snapshot, events: Iterable[Event], *, into: dict[JobId, Job] | None = None
) -> Folded:
    """Apply `events` in order. Raises InvalidTransition for an order that the table does not allow
    (a bug).

    `into`: the snapshot's own jobs, to be changed in place instead of copied; after an error they
    are good for nothing.
    """
    todo = list(reversed(list(events)))
    if not todo:
        return Folded(snapshot, (), ())
    state = _Folding(snapshot, dict(snapshot.jobs) if into is None else into)
    journal: list[Event] = []
    while todo:
        event = todo.pop()
        journal.append(event)
        conclusion = state.take(event)
        if conclusion is not None:
            todo.append(conclusion)
    return Folded(state.snapshot(), tuple(journal), tuple(state.ended))


class _Folding:
    """What changes of a snapshot while events are applied."""

    def __init__(self, before: Snapshot, jobs: dict[JobId, Job]) -> None:
        self.ended: list[Job] = []
        self._before = before
        self._jobs = jobs
        self._nodes = dict(before.nodes)
        self._drained, self._checks, self._links = before.drained, before.checks, before.links
        self._rates, self._idle, self._priors = before.rates, before.idle, before.priors
        self._next_id = before.next_id
        self._reservations = before.reservations
        self._next_reservation = before.next_reservation
        # jobs that may wait for the end of others, looked for once there is an end
        self._waiters: set[JobId] | None = None

    def snapshot(self) -> Snapshot:
        return replace(
            self._before,
            jobs=self._jobs,
            nodes=self._nodes,
            next_id=self._next_id,
            priors=priors.remember(self._priors, self.ended),
            drained=self._drained,
            checks=self._checks,
            links=self._links,
            rates=self._rates,
            idle=self._idle,
            reservations=self._reservations,
            next_reservation=self._next_reservation,
        )

    def take(self, event: Event) -> Event | None:
        """What follows from it by itself, if anything."""
        match event:
            case Submitted():
                self._submitted(event)
            case NodeSeen() | NodeSilent() | NodeRemoved():
                self._heard_of_node(event)
            case LinkMeasured():
                link = Link(event.latency, event.bandwidth, event.backend, event.at)
                self._links = {**self._links, event.nodes: link}
            case EnvironmentSeen():
                self._checks = environments.folded(self._checks, event, self._jobs)
            case Staged():
                self._rates = with_rate(self._rates, event)
                if event.job in self._jobs:
                    self._jobs[event.job] = apply(self._jobs[event.job], event)
            case NodeDrained() | NodeUndrained():
                self._drained = _fold_drained(self._drained, event)
            case NodeReserved() | NodeUnreserved():
                self._reservations = _fold_reserved(self._reservations, event)
                names = (name + 1 for name in self._reservations)
                self._next_reservation = max([self._next_reservation, *names])
            case _:
                return self._about_job(event)
        return None

    def _submitted(self, event: Submitted) -> None:
        account = accrual.opened(event.at)
        self._jobs[event.job] = Job(
            event.job, event.spec, event.at, awaits=event.awaits, account=account
        )
        self._waiters = None
        self._next_id = max(self._next_id, event.job + 1)
        self._checks = environments.hopeful(self._checks, event.spec.environment)

    def _heard_of_node(self, event: NodeSeen | NodeSilent | NodeRemoved) -> None:
        _fold_node(self._nodes, event)
        self._drained = _fold_drained(self._drained, event)
        self._reservations = _fold_reserved(self._reservations, event)
        if isinstance(event, NodeSeen):
            self._idle = idle_gpus.folded(self._idle, event.node, event.at)
            self._jobs.update(idle_gpus.busy_again(self._jobs, event.node))
            return
        if any(node == event.node for node, _ in self._idle):
            self._idle = {key: at for key, at in self._idle.items() if key[0] != event.node}
        if isinstance(event, NodeRemoved):
            self._checks = environments.without(self._checks, event.node, self._jobs)
            self._links = {
                ends: link for ends, link in self._links.items() if event.node not in ends
            }

    def _about_job(self, event: Any) -> Event | None:
        jobs = self._jobs
        job = jobs.get(event.job)
        if job is None:
            return None
        after = apply(job, event)
        if isinstance(event, Profiled) and after is not job:
            self._priors, after = priors.shared(self._priors, job, after)
        if after.state in TERMINAL:
            self._end(after, event.at)
            return None
        jobs[job.id] = after
        if after.awaits and not job.awaits:
            self._waiters = None
        over = isinstance(event, Exited | StartRefused) and _all_parts_over(after)
        if after is job or not over:
            return None
        return accrual.tallied(conclude(after, event.at, self._before.config), after)

    def _end(self, job: Job, at: Seconds) -> None:
        jobs = self._jobs
        del jobs[job.id]
        self.ended.append(job)
        if self._waiters is None:
            self._waiters = {name for name, other in jobs.items() if other.awaits}
        waiting = {name: jobs[name] for name in self._waiters if name in jobs}
        jobs.update(accrual.let_go(gates.told_of_end(waiting, job), at))


def _fold_node(nodes: dict[NodeId, Node], event: NodeSeen | NodeSilent | NodeRemoved) -> None:
    match event:
        case NodeSeen():
            nodes[event.node.id] = event.node
        case NodeSilent():
            known = nodes.get(event.node, Node(event.node))
            nodes[event.node] = replace(
                known,
                state=NodeState.UNREACHABLE,
                reason=event.reason,
                silent_since=event.since or event.at,
            )
        case NodeRemoved():
            nodes.pop(event.node, None)


def _fold_drained(drained: Mapping[NodeId, str], event: Event) -> Mapping[NodeId, str]:
    """The same mapping where nothing changes. A node that is removed is drained no more."""
    match event:
        case NodeDrained():
            return {**drained, event.node: event.reason}
        case NodeUndrained() | NodeRemoved() if event.node in drained:
            return {name: reason for name, reason in drained.items() if name != event.node}
        case _:
            return drained


def _fold_reserved(held: Mapping[int, Reservation], event: Event) -> Mapping[int, Reservation]:
    """The same mapping where nothing changes. Those that are over go when another comes."""
    match event:
        case NodeReserved():
            rest = {name: each for name, each in held.items() if each.end > event.at}
            return {**rest, event.reservation.id: event.reservation}
        case NodeUnreserved() if event.id in held:
            return {name: each for name, each in held.items() if name != event.id}
        case NodeSeen():
            return owners.folded(held, event.node, event.at)
        case NodeRemoved() if any(each.node == event.node for each in held.values()):
            return {name: each for name, each in held.items() if each.node != event.node}
        case _:
            return held


def _all_parts_over(job: Job) -> bool:
    return job.placement is not None and len(job.exits) == len(job.placement.parts)


def apply(job: Job, event: Event) -> Job:
    """The job after one fact about it; the same object when the fact is stale."""
    match event:
        case CancelAsked() | HoldAsked() | ReleaseAsked() | RequeueAsked():
            return _asked(job, event)
        case Edited():
            return _edited(job, event)
        case Idled():
            return notice(replace(job, idle=True), event.why)
        case Held() | Released():
            return _held(job, event)
        case Launched():
            return _launched(job, event)
        case StopSent() | Retuned() | Started() | StartRefused() | Exited() | Profiled() | Pulsed():
            if event.attempt != job.attempt or job.state not in HOLDS_DEVICES:
                return job  # the fence: news of an older attempt
            return _of_attempt(job, event)
        case Staged():
            if event.attempt != job.attempt or job.state is not JobState.STARTING:
                return job
            return replace(job, staged_seconds=max(job.staged_seconds, event.seconds))
        case Stopped():
            return _stopped(job, event)
        case Succeeded() | Failed() | Cancelled() | TimeLimitReached():
            return _finished(job, event)
    raise TypeError(f"{type(event).__name__} is not about a job")


def _asked(job: Job, event: CancelAsked | HoldAsked | ReleaseAsked | RequeueAsked) -> Job:
    """A wish. Nothing is wished of a job after its end was."""
    if isinstance(event, CancelAsked):
        return replace(job, wish=Wish.CANCEL)
    if job.wish is Wish.CANCEL:
        return job
    if isinstance(event, HoldAsked):
        return replace(job, wish=Wish.HOLD)
    # Who releases it wants it now. One that waits is where a requeue leads; its wish to be held
    # may not have been followed yet.
    if isinstance(event, ReleaseAsked) or job.state is JobState.PENDING:
        return _again(job, Wish.RUN)
    return _again(job, Wish.REQUEUE)


def _edited(job: Job, event: Edited) -> Job:
    kept = habits.without_accepted(job.profile.habits, event.spec.accept)
    return replace(
        job,
        spec=event.spec,
        awaits=event.awaits,
        unmet=job.unmet if event.spec.after == job.spec.after else "",
        account=accrual.edited(job, event.at),
        profile=habits.with_habits(job.profile, kept),
    )


def _held(job: Job, event: Held | Released) -> Job:
    state = advance(job.state, event)
    if isinstance(event, Released):
        account = accrual.released(job, event.at)
        return replace(job, state=state, wish=Wish.RUN, account=account)
    account = accrual.held(job, event.at)
    job = replace(job, state=state, wish=Wish.HOLD, target=None, account=account)
    return notice(job, event.why)


def _again(job: Job, wish: Wish) -> Job:
    """Its user wants another try: what went wrong before counts no more."""
    return replace(job, wish=wish, quick_failures=0, crashes=0, not_before=0.0, unmet="")


def _launched(job: Job, event: Launched) -> Job:
    again = job.attempt > 0
    resized = again and job.last_replicas != event.placement.replicas
    return replace(
        job,
        state=advance(job.state, event),
        attempt=event.attempt,
        placement=event.placement,
        order=event.order,
        port=event.port,
        launched_at=event.at,
        started_at=None,
        started_nodes=(),
        exits=(),
        stop=None,
        stop_sent_at=None,
        target=None,
        stop_forced=False,
        report_offset=0,
        staged_seconds=0.0,
        restarts=job.restarts + (1 if again else 0),
        resizes=job.resizes + (1 if resized else 0),
        last_replicas=event.placement.replicas,
        wish=Wish.RUN if job.wish is Wish.REQUEUE else job.wish,
        # What the last attempt did says nothing of this one until it reports.
        profile=replace(
            job.profile, atomic_batch=0, accum_steps=0, samples_per_second=0.0, ranks=()
        ),
        pulses=(),
        account=accrual.launched(job, event.at),
    )


def _of_attempt(
    job: Job, event: StopSent | Retuned | Started | StartRefused | Exited | Profiled | Pulsed
) -> Job:
    match event:
        case StopSent():
            after = replace(
                job,
                state=advance(job.state, event),
                stop=event.reason,
                stop_sent_at=event.at if job.stop_sent_at is None else job.stop_sent_at,
                target=event.target,
                stop_forced=event.reason is StopReason.CANCEL,
            )
            goes_on = event.reason not in (StopReason.CANCEL, StopReason.TIME)
            return notice(after, habits.warning(job)) if goes_on and job.resumable else after
        case Retuned():
            return replace(job, order=event.order)
        case Started():
            return notice(_started(job, event), event.note)
        case StartRefused():
            end = Exit(code=event.code, note=event.reason, ended_at=event.at, lost=event.transient)
            if event.stays and job.files is not None:
                job = replace(job, files=replace(job.files, stays=event.stays, looked_at=event.at))
            return _exited(job, event.node, end)
        case Exited():
            end = event.exit
            if preempted(job, end.code) and not end.stopped:
                end = replace(end, stopped=True)
            end = replace(end, ended_at=min(end.ended_at or event.at, event.at))
            return _exited(job, event.node, end)
        case Profiled():
            return learn_profile.learn(job, event) if event.offset > job.report_offset else job
        case Pulsed():
            others = [one for one in job.pulses if one.node != event.node]
            return replace(
                job, pulses=tuple(sorted([*others, *event.ranks], key=lambda one: one.rank))
            )


def _started(job: Job, event: Started) -> Job:
    if event.node in job.started_nodes:
        return job
    nodes = (*job.started_nodes, event.node)
    job = replace(job, started_nodes=nodes)
    if job.placement is not None and event.node == job.placement.parts[0][0]:
        # rank 0 writes the checkpoints
        job = replace(
            job,
            files=FilesAt(event.node, event.storage, job.files is not None and job.files.proved),
        )
    if (
        job.placement is None
        or len(nodes) < len(job.placement.parts)
        or job.state is not JobState.STARTING
    ):
        return job
    began = min(max(event.since or event.at, job.launched_at or 0.0), event.at)
    first = job.first_started_at if job.first_started_at is not None else began
    return replace(job, state=advance(job.state, event), started_at=began, first_started_at=first)


def _exited(job: Job, node: NodeId, end: Exit) -> Job:
    if any(known == node for known, _ in job.exits):
        return job
    return replace(job, exits=(*job.exits, (node, end)))


def _stopped(job: Job, event: Stopped) -> Job:
    ended = event.exit.ended_at or event.at
    after = replace(
        _released(job, ended),
        state=advance(job.state, event),
        account=accrual.over(job, event, ended),
        exit=event.exit,
        stop_seconds=max(ended - job.stop_sent_at, 0.0) if job.stop_sent_at is not None else None,
        files=replace(job.files, proved=True)
        if job.files is not None and _keeps_one(event.exit)
        else job.files,
        not_before=event.not_before,
        failures=job.failures + (1 if event.failed else 0),
        quick_failures=job.quick_failures + 1 if event.quick else 0,
        crashes=job.crashes + 1 if event.crashed else 0,
        wish=Wish.RUN if job.wish is Wish.REQUEUE else job.wish,
    )
    return notice(after, f"attempt {job.attempt}: {event.exit.note}" if event.exit.note else "")


def _keeps_one(end: Exit) -> bool:
    """Did it say that it keeps a checkpoint? One that ends with 0 when it is asked to save does,
    too."""
    return end.stopped or (end.code == 0 and end.asked in ("checkpoint", "signal"))


def _finished(job: Job, event: Succeeded | Failed | Cancelled | TimeLimitReached) -> Job:
    held = job.state in HOLDS_DEVICES
    ended = (event.exit.ended_at or event.at) if held else event.at
    after = replace(
        _released(job, ended) if held else job,
        state=advance(job.state, event),
        account=accrual.over(job, event, ended) if held else accrual.closed(job, ended),
        exit=event.exit if held else job.exit,
        ended_at=ended,
    )
    return notice(after, event.exit.note)


def _released(job: Job, ended: float) -> Job:
    """The attempt is over: its devices are given back and its time is put to the account."""
    ran = max(ended - job.launched_at, 0.0) if job.launched_at is not None else 0.0
    return replace(
        job,
        placement=None,
        service=job.service + ran * job.replicas,
        run_seconds=job.run_seconds + ran,
        launched_at=None,
        started_at=None,
    )


def notice(job: Job, line: str) -> Job:
    """`job` with one more line for its user; the same line is not said twice in a row."""
    if not line or (job.notices and job.notices[-1] == line):
        return job
    return replace(job, notices=(*job.notices, line)[-MAX_NOTICES:])
