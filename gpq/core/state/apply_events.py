"""fold(): facts -> the next snapshot. Stale news (of an older attempt, or of an ended job) changes
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpq.core.accounting import accrual
from gpq.core.feasibility import environments, gates, idle_gpus, owners
from gpq.core.feasibility.checkpoints import with_rate
from gpq.core.goodput import priors
from gpq.core.model.events import (
    Edited,
    EnvironmentSeen,
    Event,
    Exited,
    JobsRemoved,
    LinkMeasured,
    NodeDrained,
    NodeRemoved,
    NodeReserved,
    NodeSeen,
    NodeSilent,
    NodeUndrained,
    NodeUnreserved,
    Profiled,
    RequeueAsked,
    Staged,
    StartRefused,
    Submitted,
)
from gpq.core.model.jobs import TERMINAL, Job, note_for_waiters, with_notices
from gpq.core.model.nodes import Link, Node, NodeState, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.state.attempt_end import conclude
from gpq.core.state.job_events import apply, reopen


@dataclass(frozen=True, slots=True)
class Folded:
    """`journal` has the events with what was concluded from them. `ended` has final values of jobs
    that left the snapshot, and `amended` those of jobs that had ended before and were edited."""

    snapshot: Snapshot
    journal: tuple[Event, ...]
    ended: tuple[Job, ...]
    amended: tuple[Job, ...] = ()


def fold(
    snapshot: Snapshot, events: Iterable[Event], *, into: dict[JobId, Job] | None = None
) -> Folded:
    """Apply `events` in order. Raises InvalidTransition for an order that the table does not allow
    (a bug).

    `into`: the snapshot's own jobs, to be changed in place instead of copied. After an error they
    are unusable.
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
    return Folded(state.snapshot(), tuple(journal), tuple(state.ended), tuple(state.amended))


class _Folding:
    """The changes to a snapshot while events are applied."""

    def __init__(self, before: Snapshot, jobs: dict[JobId, Job]) -> None:
        self.ended: list[Job] = []
        self.amended: list[Job] = []
        self._reopened: set[JobId] = set()  # which others do not wait for again yet
        self._before = before
        self._jobs = jobs
        self._nodes = dict(before.nodes)
        self._drained, self._checks, self._links = before.drained, before.checks, before.links
        self._rates, self._idle, self._priors = before.rates, before.idle, before.priors
        self._next_id = before.next_id
        self._reservations = before.reservations
        self._next_reservation = before.next_reservation
        # jobs that may wait for the end of others, computed when there is an end
        self._waiters: set[JobId] | None = None

    def snapshot(self) -> Snapshot:
        self._wait_again()
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
        """What follows from it, if anything."""
        match event:
            case Submitted():
                account = accrual.open_account(event.at)
                self._jobs[event.job] = Job(
                    event.job, event.spec, event.at, awaits=event.awaits, account=account
                )
                self._waiters = None
                self._next_id = max(self._next_id, event.job + 1)
                self._checks = environments.hopeful(self._checks, event.spec.environment)
            case NodeSeen() | NodeSilent() | NodeRemoved():
                self._heard_of_node(event)
            case LinkMeasured():
                link = Link(event.latency, event.bandwidth, event.backend, event.at)
                self._links = {**self._links, event.nodes: link}
            case EnvironmentSeen():
                self._checks = environments.fold(self._checks, event, self._jobs)
            case RequeueAsked() if event.past is not None and event.job not in self._jobs:
                self._jobs[event.job] = reopen(event.past, event)
                self._reopened.add(event.job)
                self._waiters = None
                self._checks = environments.hopeful(self._checks, event.past.spec.environment)
            case Edited() if event.past is not None and event.job not in self._jobs:
                self.amended.append(apply(event.past, event))
            case NodeDrained() | NodeUndrained():
                self._drained = _fold_drained(self._drained, event)
            case NodeReserved() | NodeUnreserved():
                self._reservations = _fold_reserved(self._reservations, event)
                names = (name + 1 for name in self._reservations)
                self._next_reservation = max([self._next_reservation, *names])
            case JobsRemoved():
                pass  # the state has live jobs only
            case _:
                return self._about_job(event)
        return None

    def _wait_again(self) -> None:
        if self._reopened:
            self._jobs.update(gates.told_of_requeue(self._jobs, self._reopened))
            self._reopened, self._waiters = set(), None

    def _heard_of_node(self, event: NodeSeen | NodeSilent | NodeRemoved) -> None:
        self._drained = _fold_drained(self._drained, event)
        self._reservations = _fold_reserved(self._reservations, event)
        match event:
            case NodeSeen():
                self._nodes[event.node.id] = event.node
                self._idle = idle_gpus.fold(self._idle, event.node, event.at)
                self._jobs.update(idle_gpus.busy_again(self._jobs, event.node))
                return
            case NodeSilent():
                self._nodes[event.node] = replace(
                    self._nodes.get(event.node, Node(event.node)),
                    state=NodeState.UNREACHABLE,
                    reason=event.reason,
                    silent_since=event.since or event.at,
                )
            case NodeRemoved():
                self._nodes.pop(event.node, None)
                self._checks = environments.without(self._checks, event.node, self._jobs)
                self._links = {
                    ends: link for ends, link in self._links.items() if event.node not in ends
                }
        self._idle = {key: at for key, at in self._idle.items() if key[0] != event.node}

    def _about_job(self, event: Any) -> Event | None:
        if isinstance(event, Staged):
            self._rates = with_rate(self._rates, event)
        jobs = self._jobs
        job = jobs.get(event.job)
        if job is None:
            return None
        after = apply(job, event)
        if after is job:
            return None
        if isinstance(event, Profiled):
            self._priors, after = priors.share(self._priors, job, after)
        if after.state in TERMINAL:
            self._end(after, event.at)
            return None
        jobs[job.id] = after
        if after.awaits and not job.awaits:
            self._waiters = None
        if isinstance(event, Exited | StartRefused) and len(after.exits) == len(after.parts):
            end = conclude(after, event.at, self._before.config)
            return replace(end, tally=accrual.tally(after, end.exit.ended_at or end.at))
        return None

    def _end(self, job: Job, at: Seconds) -> None:
        self._wait_again()
        jobs = self._jobs
        del jobs[job.id]
        self.ended.append(job)
        if self._waiters is None:
            self._waiters = {name for name, waiter in jobs.items() if waiter.awaits}
        waiting = {name: jobs[name] for name in self._waiters & jobs.keys()}
        after = accrual.let_go(gates.told_of_end(waiting, job), at)
        line = note_for_waiters(job)
        jobs.update({name: with_notices(waiter, line) for name, waiter in after.items()})


def _fold_drained(drained: Mapping[NodeId, str], event: Event) -> Mapping[NodeId, str]:
    """The same mapping if nothing changes. A removed server is no longer drained."""
    match event:
        case NodeDrained():
            return {**drained, event.node: event.reason}
        case NodeUndrained() | NodeRemoved() if event.node in drained:
            return {name: reason for name, reason in drained.items() if name != event.node}
        case _:
            return drained


def _fold_reserved(
    reservations: Mapping[int, Reservation], event: Event
) -> Mapping[int, Reservation]:
    """The same mapping if nothing changes. Expired ones go when another one comes."""
    match event:
        case NodeReserved():
            current = _matching(reservations, lambda reservation: reservation.end > event.at)
            return {**current, event.reservation.id: event.reservation}
        case NodeUnreserved():
            return _matching(reservations, lambda reservation: reservation.id != event.id)
        case NodeSeen():
            return owners.fold(reservations, event.node, event.at)
        case NodeRemoved():
            return _matching(reservations, lambda reservation: reservation.node != event.node)
        case _:
            return reservations


def _matching(
    reservations: Mapping[int, Reservation], matches: Callable[[Reservation], bool]
) -> Mapping[int, Reservation]:
    """Those that match. The same mapping if all do."""
    if all(map(matches, reservations.values())):
        return reservations
    return {name: reservation for name, reservation in reservations.items() if matches(reservation)}
