"""fold(): facts -> the next snapshot. Stale news (of an older attempt, of a job that ended) changes
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
from gpq.core.model.units import JobId, NodeId
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
    jobs = dict(snapshot.jobs) if into is None else into
    nodes, drained, checks = dict(snapshot.nodes), snapshot.drained, snapshot.checks
    next_id, reservations, next_reservation = (
        snapshot.next_id,
        snapshot.reservations,
        snapshot.next_reservation,
    )
    rates, links, idle, learnt = snapshot.rates, snapshot.links, snapshot.idle, snapshot.priors
    journal: list[Event] = []
    ended: list[Job] = []
    # jobs that may wait for the end of others, found once there is an end
    waiters: set[JobId] | None = None
    while todo:
        event = todo.pop()
        journal.append(event)
        match event:
            case Submitted():
                account = accrual.opened(event.at)
                jobs[event.job] = Job(
                    event.job, event.spec, event.at, awaits=event.awaits, account=account
                )
                waiters = None
                next_id = max(next_id, event.job + 1)
                checks = environments.hopeful(checks, event.spec.environment)
            case NodeSeen() | NodeSilent() | NodeRemoved():
                _fold_node(nodes, event)
                drained = _fold_drained(drained, event)
                reservations = _fold_reserved(reservations, event)
                if isinstance(event, NodeSeen):
                    idle = idle_gpus.folded(idle, event.node, event.at)
                    jobs.update(idle_gpus.busy_again(jobs, event.node))
                elif any(node == event.node for node, _ in idle):
                    idle = {key: at for key, at in idle.items() if key[0] != event.node}
                if isinstance(event, NodeRemoved):
                    checks = environments.without(checks, event.node, jobs)
                    links = {ends: link for ends, link in links.items() if event.node not in ends}
            case LinkMeasured():
                links = {
                    **links,
                    event.nodes: Link(event.latency, event.bandwidth, event.backend, event.at),
                }
            case EnvironmentSeen():
                checks = environments.folded(checks, event, jobs)
            case Staged():
                rates = with_rate(rates, event)
                if event.job in jobs:
                    jobs[event.job] = apply(jobs[event.job], event)
            case NodeDrained() | NodeUndrained():
                drained = _fold_drained(drained, event)
            case NodeReserved() | NodeUnreserved():
                reservations = _fold_reserved(reservations, event)
                next_reservation = max([next_reservation, *(name + 1 for name in reservations)])
            case _:
                job = jobs.get(event.job)
                if job is None:
                    continue
                after = apply(job, event)
                if isinstance(event, Profiled) and after is not job:
                    learnt, after = priors.shared(learnt, job, after)
                if after.state in TERMINAL:
                    del jobs[job.id]
                    ended.append(after)
                    waiters = (
                        {name for name, each in jobs.items() if each.awaits}
                        if waiters is None
                        else waiters
                    )
                    told = gates.told_of_end(
                        {name: jobs[name] for name in waiters if name in jobs}, after
                    )
                    jobs.update(accrual.let_go(told, event.at))
                    continue
                jobs[job.id] = after
                waiters = None if after.awaits and not job.awaits else waiters
                if (
                    after is not job
                    and isinstance(event, Exited | StartRefused)
                    and _all_parts_over(after)
                ):
                    todo.append(accrual.tallied(conclude(after, event.at, snapshot.config), after))
    learnt = priors.remember(learnt, ended)
    now = replace(
        snapshot,
        jobs=jobs,
        nodes=nodes,
        next_id=next_id,
        priors=learnt,
        drained=drained,
        checks=checks,
        links=links,
        rates=rates,
        idle=idle,
        reservations=reservations,
        next_reservation=next_reservation,
    )
    return Folded(now, tuple(journal), tuple(ended))


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
        case CancelAsked():
            return replace(job, wish=Wish.CANCEL)
        case HoldAsked():
            return replace(job, wish=Wish.HOLD) if job.wish is not Wish.CANCEL else job
        case ReleaseAsked():
            if job.wish is Wish.CANCEL:
                return job
            return _again(job, Wish.RUN)  # who releases it wants it now
        case RequeueAsked():
            if job.wish is Wish.CANCEL:
                return job
            # One that waits is where a requeue leads; its wish to be held may not have been
            # followed yet.
            wish = Wish.RUN if job.state is JobState.PENDING else Wish.REQUEUE
            return _again(job, wish)
        case Edited():
            account = accrual.edited(job, event.at)
            unmet = job.unmet if event.spec.after == job.spec.after else ""
            profile = habits.with_habits(
                job.profile, habits.without_accepted(job.profile.habits, event.spec.accept)
            )
            return replace(
                job,
                spec=event.spec,
                awaits=event.awaits,
                unmet=unmet,
                account=account,
                profile=profile,
            )
        case Idled():
            return notice(replace(job, idle=True), event.why)
        case Held():
            account = accrual.held(job, event.at)
            job = replace(
                job, state=advance(job.state, event), wish=Wish.HOLD, target=None, account=account
            )
            return notice(job, event.why)
        case Released():
            account = accrual.released(job, event.at)
            return replace(job, state=advance(job.state, event), wish=Wish.RUN, account=account)
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
