"""Requests that change nothing: answered from the newest snapshot and the past. A screen has rows
for the jobs that have GPUs, and for as many waiting jobs as a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import TypeVar

import msgspec

from gpq.control import detail, event_text, node_requests, query_language, usage_report
from gpq.control.changes import Handlers
from gpq.control.completion import words
from gpq.control.controller import Controller
from gpq.control.counters import Counters
from gpq.control.logs import LogReader
from gpq.control.reader import Reader
from gpq.control.selectors import find_job, resolve, single
from gpq.control.usage_report import HOUR
from gpq.core.accounting import accrual
from gpq.core.accounting.fairness import JobFairness, known_fairness
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.reservations import current
from gpq.core.goodput import estimates
from gpq.core.model.accounts import Saving
from gpq.core.model.jobs import TERMINAL, Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.ports import History, Peer, Tail, Wanted
from gpq.rpc import codec, daemon_answers, job_answers, node_answers, requests
from gpq.rpc.job_answers import JobView

T = TypeVar("T")

RECENT_IN_TOP = 5
ENDED_IN_TOP = 100  # if the query names a state of ended jobs
CHANGES_IN_TOP = 12
SEARCHED = 1000  # ended jobs in a query without --all
FOLDED = 4  # this many elements in a row that wait for the same thing become one row


class Readings:
    """Answers from any thread. `unsent` looks up notifications about a job that could not be sent,
    and `warnings` are lines for the head of a listing."""

    def __init__(
        self,
        controller: Controller,
        past: History,
        tail: Tail,
        staging: Callable[[JobId], Staging | None],
        unsent: Callable[[JobId], list[str]] = lambda job: [],
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        self._controller = controller
        self._past = past
        self._staging = staging
        self._logs = LogReader(controller, past, tail)
        self._unsent, self._warnings = unsent, warnings
        # why the arbiter of a team lets a job wait
        self.team: Callable[[JobId], Sequence[str]] = lambda job: ()
        self.summary: Callable[[], job_answers.TeamView | None] = lambda: None
        self._fairness: tuple[Snapshot, Mapping[JobId, JobFairness]] = (Snapshot(), {})
        self.handlers: Handlers = {
            requests.Status: self._status,
            requests.Select: self._select,
            requests.History: partial(self._of_past, usage_report.history),
            requests.Report: partial(self._of_past, usage_report.report),
            requests.Show: self._show,
            requests.Why: lambda request, peer: detail.explanation(*self._find(request.job)),
            requests.Logs: self._read_log,
            requests.Nodes: self._nodes,
            requests.Top: self._top,
            requests.Complete: lambda request, peer: words(self._reader(), past, request),
        }

    def look(self) -> tuple[Reader, Counters]:
        """The newest snapshot, and the counters up to it. From any thread."""
        with self._controller.changed:
            snapshot, tally = self._controller.snapshot, self._controller.tally
        return self._reader(snapshot), tally

    def _reader(self, newest: Snapshot | None = None) -> Reader:
        controller = self._controller
        newest = newest or controller.snapshot
        snapshot, fairness = self._fairness
        if snapshot is not newest:  # it only changes with the snapshot, and many look at each
            snapshot = newest
            self._fairness = snapshot, fairness = snapshot, known_fairness(snapshot)
        return Reader(
            snapshot,
            controller.last_round,
            controller.world.now(),
            fairness,
            self._staging,
            controller.last_change,
            self._unsent,
            self.team,
        )

    def _status(self, request: requests.Status, peer: Peer) -> job_answers.JobList | codec.Stream:
        query_language.check_states(request.states)
        query = query_language.parse(request.query)
        if not request.jobs:
            return self._queue(request, query)
        names = resolve(request.jobs, self._controller.snapshot, self._past)
        if len(names) <= codec.ROWS and not request.query:
            return self.rows(names)
        frame, pages = self.rows([]), (self.rows(page).jobs for page in codec.pages(names))
        if not request.query:
            return codec.Stream(frame, pages)
        rows = query.answer(chain.from_iterable(pages))
        if len(rows) <= codec.ROWS:
            return msgspec.structs.replace(frame, jobs=rows)
        return codec.Stream(frame, codec.pages(rows))

    def _queue(
        self, request: requests.Status, query: query_language.Query
    ) -> job_answers.JobList | codec.Stream:
        """Live jobs and the newest ended ones, as far as they match."""
        reader = self._reader()
        users = [request.user] if request.user else query.exactly("user")
        states = request.states or query.exactly("state")
        limit = request.recent
        if request.query and request.recent > 0:
            limit = max(request.recent, SEARCHED)
        live = [
            job
            for _, job in sorted(reader.snapshot.jobs.items())
            if (not users or job.spec.user in users) and (not states or job.state in states)
        ]
        recent_ids = self._recent_ids(reader.snapshot, users, states, limit)
        recent_rows = (reader.jobs(self._by_id(page)) for page in codec.pages(recent_ids))
        ended_count = self._past.ended_count()
        unseen_count = max(ended_count - len(recent_ids), 0)
        hidden_waiting = 0
        warnings = [*reader.warnings(), *self._warnings()]
        if request.query:
            rows = query.answer(chain(chain.from_iterable(recent_rows), map(reader.job, live)))
            if unseen_count and 0 < limit == len(recent_ids):
                warnings.append(
                    f"{unseen_count} jobs that ended earlier were not searched: `gpq status --all`"
                    " searches them too"
                )
        else:
            rows, hidden_waiting = screen(reader, live, request.waiting)
            if len(recent_ids) <= codec.ROWS:
                rows = [*chain.from_iterable(recent_rows), *rows]
        is_filtered, hidden = bool(users or states or request.query), unseen_count
        if is_filtered:
            hidden = 0
            if len(recent_ids) == limit and limit >= codec.ROWS and not request.query:
                hidden = max(self._past.count(_criteria(users, states, limit)) - limit, 0)
        answer = job_answers.JobList(
            rows,
            total=len(reader.snapshot.jobs) + ended_count,
            hidden=hidden,
            hidden_waiting=hidden_waiting,
            now=event_text.stamp(reader.now),
            warnings=warnings,
            team=None if is_filtered else self.summary(),
        )
        if len(rows if request.query else recent_ids) <= codec.ROWS:
            return answer
        frame = msgspec.structs.replace(answer, jobs=[])
        # a query has read the recent rows and has those that match in `rows`
        return codec.Stream(frame, chain(recent_rows, codec.pages(rows)))

    def _recent_ids(
        self, snapshot: Snapshot, users: Sequence[str], states: Sequence[str], limit: int
    ) -> list[JobId]:
        """The newest ended jobs, rising."""
        if limit <= 0 or (states and TERMINAL.isdisjoint(states)):
            return []
        ended_ids = self._past.ids(_criteria(users, states, limit))
        return sorted(name for name in ended_ids if name not in snapshot.jobs)

    def _by_id(self, ended_ids: Sequence[JobId]) -> list[Job]:
        return sorted(self._past.history(ids=ended_ids), key=lambda job: job.id)

    def rows(self, names: Sequence[JobId]) -> job_answers.JobList:
        """Exactly these jobs, in this order."""
        reader = self._reader()
        live = reader.snapshot.jobs
        jobs = {name: live[name] for name in names if name in live}
        past = [name for name in names if name not in live]
        jobs |= {job.id: job for job in self._past.history(ids=past)}
        return job_answers.JobList(
            reader.jobs(jobs[name] for name in names if name in jobs),
            total=len(live) + self._past.ended_count(),
            now=event_text.stamp(reader.now),
            warnings=reader.warnings(),
        )

    def _select(self, request: requests.Select, peer: Peer) -> job_answers.Selection:
        reader = self._reader()
        live = reader.snapshot.jobs
        names = resolve(request.jobs, reader.snapshot, self._past)
        rows = reader.jobs(live[name] for name in names if name in live)
        return job_answers.Selection(rows, [int(name) for name in names if name not in live])

    def _find(self, selector: str) -> tuple[Reader, Job]:
        reader = self._reader()
        name = single(selector, reader.snapshot, self._past)
        return reader, find_job(name, reader.snapshot, self._past)

    def _show(self, request: requests.Show, peer: Peer) -> job_answers.JobDetail:
        reader, job = self._find(request.job)
        return detail.detail(reader, job, self._past.events(job=job.id))

    def _of_past(self, answer: Callable[..., T], request: requests.Request, peer: Peer) -> T:
        controller = self._controller
        return answer(request, controller.snapshot, self._past, controller.world.now())

    def _read_log(self, request: requests.Logs, peer: Peer) -> job_answers.LogChunk:
        name = single(request.job, self._controller.snapshot, self._past)
        chunk = self._logs.read(name, request, peer.crowded)
        if chunk.data:
            return chunk
        reader, job = self._find(str(name))
        return msgspec.structs.replace(chunk, notes=reader.notes(job))

    def _nodes(self, request: requests.Nodes, peer: Peer) -> node_answers.NodeList:
        reader = self._reader()
        for name in request.names:
            node_requests.find_node(reader.snapshot, name)
        snapshot, now = reader.snapshot, reader.now
        names = set(request.names) or set(map(str, snapshot.nodes))
        reservations = [
            node_requests.reservation_view(snapshot, reservation, now)
            for reservation in current(snapshot, now)
            if reservation.node in names
        ]
        return node_answers.NodeList(reader.nodes(request.names), reservations)

    def _top(self, request: requests.Top, peer: Peer) -> daemon_answers.TopLook:
        reader = self._reader()
        live = [job for _, job in sorted(reader.snapshot.jobs.items())]
        jobs = self._looked_at(reader, live, request)
        journal = self._past.events(kinds=detail.CHANGES, limit=CHANGES_IN_TOP)
        durations = list(self._controller.round_seconds)
        growths = sum((accrual.growths(job, reader.now) for job in live), Saving())
        return daemon_answers.TopLook(
            nodes=reader.nodes(),
            jobs=jobs,
            users=reader.users(),
            changes=list(map(event_text.event_view, reversed(journal))),
            policy=reader.snapshot.config.policy,
            round_seconds=durations[-1] if durations else None,
            round_age=max(reader.now - reader.round.at, 0.0) if reader.round is not None else None,
            cluster_goodput=sum(
                estimate.goodput
                for job in live
                if job.replicas and (estimate := estimates.now_of(job))
            ),
            now=event_text.stamp(reader.now),
            promised_hours=growths.promised / HOUR,
            gained_hours=growths.measured / HOUR,
            team=self.summary(),
            states=Counter(str(job.state) for job in live),
            fault=reader.fault,
        )

    def _looked_at(
        self, reader: Reader, live: list[Job], request: requests.Top
    ) -> list[job_answers.JobView]:
        """Callers ask for it every second, so it searches only a few ended jobs."""
        query = query_language.parse(request.query)
        if request.jobs:
            return query.answer(self.rows(resolve(request.jobs, reader.snapshot, self._past)).jobs)
        finals = [state for state in query.exactly("state") if state in TERMINAL]
        users = query.exactly("user")
        limit = ENDED_IN_TOP if finals else RECENT_IN_TOP
        ended_jobs = self._past.history(user=_single(users), states=finals, limit=limit)
        return query.answer(
            reader.jobs([*live, *(job for job in ended_jobs if job.id not in reader.snapshot.jobs)])
        )


def _criteria(users: Sequence[str], states: Sequence[str], limit: int) -> Wanted:
    finals = [state for state in states if state in TERMINAL]
    return Wanted(user=_single(users), states=finals, limit=limit)


def _single(users: Sequence[str]) -> str:
    """The only user whose history is asked for, "" for all."""
    return users[0] if len(users) == 1 else ""


def screen(reader: Reader, live: Sequence[Job], most: int) -> tuple[list[JobView], int]:
    """The rows of `live` in its order, and how many waiting jobs get no row. `most` limits the rows
    of waiting jobs, unless it is 0. Consecutive elements of an array that wait for the same thing
    are one row (`JobView.alike`)."""
    if most <= 0:
        return reader.jobs(live), 0
    rows: list[JobView] = []
    room, hidden = most, 0
    for _, group in groupby(enumerate(live), lambda pair: _likeness(reader, *pair)):
        run = [job for _, job in group]
        if run[0].placement is not None:
            rows += reader.jobs(run)
            continue
        if len(run) < FOLDED:
            run_rows = reader.jobs(run[:room])
        elif room > 0:
            last, seat = run[-1], run[-1].spec.seat
            first_row, last_index = reader.job(run[0]), seat.index if seat is not None else None
            run_rows = [
                msgspec.structs.replace(
                    first_row, alike=len(run), last=int(last.id), last_index=last_index
                )
            ]
        else:
            run_rows = []
        rows += run_rows
        room -= len(run_rows)
        hidden += len(run) - sum(row.alike for row in run_rows)
    return rows, hidden


def _likeness(reader: Reader, place: int, job: Job) -> object:
    """Equal for neighbours in an array that wait for the same thing. `place`: in the list."""
    seat = job.spec.seat
    if seat is None or job.placement is not None or job.notices:
        return job.id
    reason = reader.reasons.reason(job)
    if not reason:
        return job.id
    return reason, seat.array, seat.index - place, job.state, job.spec.user
