"""Requests that change nothing: answered from the newest snapshot and the past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpq.control import event_text
from gpq.control.answers import (
    detail,
    job_history,
    job_rows,
    query_language,
    usage_report,
)
from gpq.control.answers.completion import words
from gpq.control.answers.reader import Reader
from gpq.control.controller import Controller
from gpq.control.counters import Tally
from gpq.control.requests import drain, reserve
from gpq.control.selectors import resolve, single
from gpq.core.accounting.fairness import JobFairness, known_fairness
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.reservations import current
from gpq.core.goodput import estimates
from gpq.core.model.jobs import TERMINAL, Job, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.daemon.service.changes import Handlers
from gpq.daemon.service.logs import LogReader, Tail
from gpq.daemon.service.server import Peer
from gpq.errors import NotFound, UsageError
from gpq.ports import History
from gpq.rpc import account_answers, daemon_answers, job_answers, node_answers, requests

RECENT_IN_TOP = 5
ENDED_IN_TOP = 100  # where the query names a state of jobs that ended
CHANGES_IN_TOP = 12
SEARCHED = 1000  # jobs that ended, by a query without --all


class Readings:
    """Answers from any thread. `notes` are what could not be told to anybody about a job."""

    def __init__(
        self,
        controller: Controller,
        past: History,
        policy: str,
        tail: Tail,
        staging: Callable[[JobId], Staging | None],
    ) -> None:
        self._controller = controller
        self._past = past
        self._policy = policy
        self._staging = staging
        self._logs = LogReader(controller, past, tail)
        self.notes: Callable[[JobId], list[str]] = lambda job: []
        self._fairness: tuple[Snapshot, Mapping[JobId, JobFairness]] = (Snapshot(), {})
        self.handlers: Handlers = {
            requests.Status: self._status,
            requests.History: self._history,
            requests.Report: self._report,
            requests.Show: self._show,
            requests.Why: self._why,
            requests.Logs: self._read_log,
            requests.Nodes: self._nodes,
            requests.Top: self._top,
            requests.Complete: self._complete,
        }

    def look(self) -> tuple[Reader, Tally]:
        """The newest snapshot and what was counted up to it. From any thread."""
        with self._controller.changed:
            snapshot, tally = self._controller.snapshot, self._controller.tally
        return self._reader(snapshot), tally

    def _reader(self, newest: Snapshot | None = None) -> Reader:
        controller = self._controller
        newest = newest or controller.snapshot
        snapshot, fairness = self._fairness
        if snapshot is not newest:  # it changes with the snapshot alone: many look at each
            snapshot = newest
            self._fairness = snapshot, fairness = snapshot, known_fairness(snapshot)
        return Reader(
            snapshot,
            controller.last_round,
            controller.world.now(),
            fairness,
            self._staging,
            controller.last_change,
        )

    def _status(self, request: requests.Status, peer: Peer) -> job_answers.JobList:
        known = set(JobState)
        for state in request.states:
            if state not in known:
                raise UsageError(f"unknown state `{state}`", f"known are {', '.join(JobState)}")
        query = query_language.parse(request.query)
        if request.jobs:
            listed = self.rows(resolve(request.jobs, self._controller.snapshot, self._past))
            return (
                msgspec.structs.replace(listed, jobs=query.answer(listed.jobs))
                if request.query
                else listed
            )
        reader = self._reader()
        users = [request.user] if request.user else query.exactly("user")
        states = request.states or query.exactly("state")

        def wanted(job: Job) -> bool:
            return (not users or job.spec.user in users) and (not states or job.state in states)

        jobs = reader.snapshot.jobs
        live = [jobs[name] for name in sorted(jobs) if not (users or states) or wanted(jobs[name])]
        finals = [state for state in states if state in TERMINAL]
        recent: list[Job] = []
        searched = max(request.recent, SEARCHED) if request.query else request.recent
        if request.recent > 0 and (finals or not states):
            found = self._past.history(
                user=users[0] if len(users) == 1 else "", states=finals, limit=searched
            )
            recent = sorted(
                (job for job in found if job.id not in reader.snapshot.jobs), key=lambda job: job.id
            )
        hidden_waiting = 0
        if request.waiting > 0 and not request.query:
            shown, hidden_waiting = job_rows.screen(reader, live, request.waiting)
            rows = [*reader.jobs(recent), *shown]
        else:
            rows = reader.jobs([*recent, *live])
        ended = self._past.ended_count()
        unseen = max(ended - len(recent), 0)
        if request.query:
            rows = query.answer(rows)
        return job_answers.JobList(
            rows,
            total=len(reader.snapshot.jobs) + ended,
            hidden=0 if users or states or request.query else unseen,
            hidden_waiting=hidden_waiting,
            now=event_text.stamp(reader.now),
            warnings=[
                *reader.warnings(),
                *(_unsearched(unseen) if request.query and len(recent) == searched else []),
            ],
        )

    def rows(self, names: Sequence[JobId]) -> job_answers.JobList:
        """Exactly these jobs, in this order."""
        reader = self._reader()
        past = [name for name in names if name not in reader.snapshot.jobs]
        ended = {job.id: job for job in self._past.history(ids=past)} if past else {}
        found = [reader.snapshot.jobs.get(name) or ended.get(name) for name in names]
        return job_answers.JobList(
            reader.jobs(job for job in found if job is not None),
            total=len(reader.snapshot.jobs) + self._past.ended_count(),
            now=event_text.stamp(reader.now),
            warnings=reader.warnings(),
        )

    def _find(self, selector: str) -> tuple[Reader, Job]:
        reader = self._reader()
        name = single(selector, reader.snapshot, self._past)
        job = reader.snapshot.jobs.get(name)
        if job is None:
            ended = self._past.history(ids=[name])
            if not ended:
                raise NotFound(f"there is no job {selector}", "`gpq status` lists what there is")
            job = ended[0]
        return reader, job

    def _show(self, request: requests.Show, peer: Peer) -> job_answers.JobDetail:
        reader, job = self._find(request.job)
        told = detail.detail(reader, job, self._past.events(job=job.id))
        notes = self.notes(job.id)
        return msgspec.structs.replace(told, notices=[*told.notices, *notes]) if notes else told

    def _history(self, request: requests.History, peer: Peer) -> account_answers.HistoryList:
        controller = self._controller
        return job_history.history(request, controller.snapshot, self._past, controller.world.now())

    def _report(self, request: requests.Report, peer: Peer) -> account_answers.ReportView:
        controller = self._controller
        return usage_report.report(request, controller.snapshot, self._past, controller.world.now())

    def _why(self, request: requests.Why, peer: Peer) -> job_answers.Explanation:
        return detail.explanation(*self._find(request.job))

    def _read_log(self, request: requests.Logs, peer: Peer) -> job_answers.LogChunk:
        name = single(request.job, self._controller.snapshot, self._past)
        return self._logs.read(name, request, peer.crowded)

    def _nodes(self, request: requests.Nodes, peer: Peer) -> node_answers.NodeList:
        reader = self._reader()
        for name in request.names:
            drain.known(reader.snapshot, name)
        snapshot, now = reader.snapshot, reader.now
        wanted = set(request.names) or set(map(str, snapshot.nodes))
        held = [
            reserve.view(snapshot, each, now)
            for each in current(snapshot, now)
            if each.node in wanted
        ]
        return node_answers.NodeList(reader.nodes(request.names), held)

    def _top(self, request: requests.Top, peer: Peer) -> daemon_answers.TopLook:
        reader = self._reader()
        live = [job for _, job in sorted(reader.snapshot.jobs.items())]
        jobs = self._looked_at(reader, live, request)
        journal = self._past.events(kinds=detail.CHANGES, limit=CHANGES_IN_TOP)
        took = list(self._controller.round_seconds)
        return daemon_answers.TopLook(
            nodes=reader.nodes(),
            jobs=jobs,
            users=reader.users(),
            changes=[event_text.event_view(event) for event in reversed(journal)],
            policy=self._policy,
            round_seconds=took[-1] if took else None,
            round_age=max(reader.now - reader.round.at, 0.0) if reader.round is not None else None,
            cluster_goodput=sum(
                found.goodput for job in live if job.replicas and (found := estimates.now_of(job))
            ),
            now=event_text.stamp(reader.now),
            states=Counter(str(job.state) for job in live),
        )

    def _looked_at(
        self, reader: Reader, live: list[Job], request: requests.Top
    ) -> list[job_answers.JobView]:
        """It is asked for every second, so that few of the jobs that ended are searched."""
        query = query_language.parse(request.query)
        if request.jobs:
            return query.answer(self.rows(resolve(request.jobs, reader.snapshot, self._past)).jobs)
        finals = [state for state in query.exactly("state") if state in TERMINAL]
        users = query.exactly("user")
        found = self._past.history(
            user=users[0] if len(users) == 1 else "",
            states=finals,
            limit=ENDED_IN_TOP if finals else RECENT_IN_TOP,
        )
        return query.answer(
            reader.jobs([*live, *(job for job in found if job.id not in reader.snapshot.jobs)])
        )

    def _complete(self, request: requests.Complete, peer: Peer) -> daemon_answers.Words:
        return words(self._reader(), self._past, request)


def _unsearched(count: int) -> list[str]:
    return (
        [
            f"{count} jobs that ended earlier were not searched: `gpq status --all` with the query"
            " does"
        ]
        if count
        else []
    )
