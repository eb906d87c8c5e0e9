"""What the daemon does with each request: reads from the newest snapshot, changes through the controller."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

import gpq
from gpq import outward, pace, paths
from gpq.control import event_text
from gpq.control.answers import detail, job_history, job_rows, query_language
from gpq.control.answers.completion import words
from gpq.control.answers.reader import Reader, node_word
from gpq.control.controller import Controller
from gpq.control.counters import Tally
from gpq.control.requests import dependencies, drain, edit, job_requests, links, reserve
from gpq.control.selectors import resolve, single
from gpq.core.accounting.fairness import JobFairness, known_fairness
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.feasibility.leases import silence
from gpq.core.feasibility.reservations import current
from gpq.core.goodput import estimates
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.daemon.clock.deadlines import deadline, left
from gpq.daemon.nodes.registry import Fleet
from gpq.daemon.service.logs import LogReader, Tail
from gpq.daemon.service.server import Peer
from gpq.daemon.service.submit import Submitting, settled
from gpq.errors import GpqError, NotFound, UsageError
from gpq.ports import History
from gpq.rpc import account_answers, daemon_answers, job_answers, node_answers, requests
from gpq.rpc.requests import Request

MAX_WAIT = 600.0  # seconds that one request may wait
MAX_ERRAND = 120.0  # seconds
RECENT_IN_TOP = 5
ENDED_IN_TOP = 100  # where the query names a state of jobs that ended
CHANGES_IN_TOP = 12
SEARCHED = 1000  # jobs that ended, by a query without --all


@dataclass(frozen=True)
class About:
    """What the daemon knows of itself."""

    config: Config
    started_at: float
    epoch: int
    grace: float  # of jobs that ask for none
    lease: float = 0.0  # of jobs that ask for none: requeue_on_lost
    notify: outward.Notify = outward.NO_TARGETS  # as of its start; targets that were added since are known as well
    accept: Mapping[str, Sequence[str]] = field(default_factory=dict)  # suspicions by script


class Service:
    """`handle` answers any request, from any thread. `end` is called when somebody asks the daemon to end, `on_peer` with the
    process that a request is of."""

    def __init__(
        self,
        controller: Controller,
        past: History,
        tail: Tail,
        about: About,
        fleet: Fleet,
        end: Callable[[], None],
        errand: Callable[[NodeId, str, Mapping[str, object], float], dict[str, Any]],
        staging: Callable[[JobId], Staging | None] = lambda job: None,
        on_peer: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._staging = staging
        self._came_from = on_peer
        self._controller = controller
        self._past = past
        self._about = about
        self._fleet = fleet
        self._end = end
        self._run_errand = errand
        self._logs = LogReader(controller, past, tail)
        self.notes: Callable[[JobId], list[str]] = lambda job: []  # of what could not be told to anybody
        self.metrics: Callable[[], tuple[str, str]] = lambda: ("", "")  # where they are served, why they are not
        self._fairness: tuple[Snapshot, Mapping[JobId, JobFairness]] = (Snapshot(), {})
        self._submitting = Submitting(
            controller, past, lambda: fleet.names,
            grace=about.grace, lease=about.lease, notify=about.notify, accept=about.accept,
        )  # fmt: skip
        self._handlers: dict[type[Request], Callable[[Any, Peer], msgspec.Struct]] = {
            requests.Submit: self._submitting.submit,
            requests.Status: self._status,
            requests.History: self._history,
            requests.Report: self._report,
            requests.Show: self._show,
            requests.Why: self._why,
            requests.Logs: self._read_log,
            requests.Cancel: self._cancel,
            requests.Hold: self._hold,
            requests.Release: self._release,
            requests.Requeue: self._requeue,
            requests.Edit: self._edit,
            requests.Wait: self._wait,
            requests.Nodes: self._nodes,
            requests.Drain: self._drain,
            requests.Undrain: self._undrain,
            requests.Reserve: self._reserve,
            requests.Unreserve: self._unreserve,
            requests.Top: self._top,
            requests.Complete: self._complete,
            requests.Errand: self._errand,
            requests.Measured: self._measured,
            requests.Info: self._info,
            requests.Reload: self._reload,
            requests.Shutdown: self._shutdown,
        }

    def handle(self, request: Request, peer: Peer) -> msgspec.Struct:
        """The answer. Raises GpqError."""
        wait = getattr(request, "wait", 0.0)
        if not 0.0 <= wait <= MAX_WAIT:
            raise UsageError(f"a request may wait at most {MAX_WAIT:.0f} s", "ask again and again")
        self._came_from(peer.pid)
        return self._handlers[type(request)](request, peer)

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
            snapshot, controller.last_round, controller.world.now(), fairness, self._staging, controller.last_change
        )

    # -- changes -------------------------------------------------------------------------------------------------------

    def _cancel(self, request: requests.Cancel, peer: Peer) -> job_answers.CancelResult:
        """Ask, then wait until each job has left the snapshot: it does so only when none of its processes is left."""
        controller = self._controller
        now = controller.world.now
        names = resolve(request.jobs, controller.snapshot, self._past)

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], tuple[set[JobId], dict[JobId, list[str]]]]:
            unheard = {
                name: absent
                for name in names
                if name in snapshot.jobs and (absent := _without(snapshot, name, self._fleet.names))
            }
            return job_requests.cancel(snapshot, names, now(), peer.user), (set(names) - set(snapshot.jobs), unheard)

        before, absent = controller.ask(build)
        remaining = self._until_gone(names, request.wait, hurry=lambda: all(self._unheard(names).values()))
        over = {job.id: job for job in self._past.history(ids=[name for name in names if name not in remaining])}
        cancelled = [
            int(name)
            for name in names
            if name not in before and name in over and over[name].state is JobState.CANCELLED
        ]
        given_up = {int(name): nodes for name, nodes in absent.items() if int(name) in cancelled}
        cancelled = [name for name in cancelled if name not in given_up]
        ended = [int(name) for name in names if name not in remaining and int(name) not in {*cancelled, *given_up}]
        waiting = {int(name): said for name, said in self._unheard(names).items() if said and name in remaining}
        return job_answers.CancelResult(
            cancelled, ended, [int(name) for name in names if name in remaining], waiting, given_up
        )

    def _unheard(self, names: Sequence[JobId]) -> dict[JobId, str]:
        """Of the jobs that are still live: whose silence an order to them waits out, "" where it was given.

        Not yet of servers that were never heard of, or only a moment ago; never of those that are not configured."""
        snapshot, now = self._controller.snapshot, self._controller.world.now()
        told = dict.fromkeys((name for name in names if name in snapshot.jobs), "")
        for name in told:
            silent = silence(snapshot, snapshot.jobs[name], now)
            if silent is not None and silent.seconds >= pace.FIRST_NEWS and snapshot.nodes.keys() >= set(silent.nodes):
                told[name] = str(silent)
        return told

    def _hold(self, request: requests.Hold, peer: Peer) -> job_answers.Changed:
        return self._change(request.jobs, job_requests.hold, peer)

    def _release(self, request: requests.Release, peer: Peer) -> job_answers.Changed:
        return self._change(request.jobs, job_requests.release, peer)

    def _requeue(self, request: requests.Requeue, peer: Peer) -> job_answers.Changed:
        return self._change(request.jobs, job_requests.requeue, peer)

    def _edit(self, request: requests.Edit, peer: Peer) -> job_answers.Changed:
        edit.check(request)
        controller, past = self._controller, self._past
        names = resolve(request.jobs, controller.snapshot, past)
        words = request.changes.get("after")
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise UsageError("`after` is a list of jobs with conditions", dependencies.EXAMPLE)
        asked = None if words is None else dependencies.dependencies(words, controller.snapshot, past)
        notify = self._submitting.targets(request.changes.get("notify"))

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Changed]:
            ended = [name for name in names if name not in snapshot.jobs]
            over = past.history(ids=ended) if ended else []
            ends = edit.judge(request, asked, snapshot, lambda ids: past.history(ids=ids), self._fleet.names, notify)
            return job_requests.changes(snapshot, names, over, ends, controller.world.now(), peer.user)

        return settled(controller, build)

    def _change(
        self, selectors: Sequence[str], judge: Callable[[Job, float, str], job_requests.Verdict], peer: Peer
    ) -> job_answers.Changed:
        controller = self._controller
        now = controller.world.now
        names = resolve(selectors, controller.snapshot, self._past)

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Changed]:
            ended = [name for name in names if name not in snapshot.jobs]
            over = self._past.history(ids=ended) if ended else []
            return job_requests.changes(snapshot, names, over, judge, now(), peer.user)

        return controller.ask(build)

    def _drain(self, request: requests.Drain, peer: Peer) -> node_answers.Drained:
        ask, now = self._controller.ask, self._controller.world.now
        return ask(lambda snapshot: drain.drain(snapshot, request.node, request.reason, now(), peer.user))

    def _undrain(self, request: requests.Undrain, peer: Peer) -> node_answers.Drained:
        ask, now = self._controller.ask, self._controller.world.now
        return ask(lambda snapshot: drain.undrain(snapshot, request.node, now(), peer.user))

    def _reserve(self, request: requests.Reserve, peer: Peer) -> node_answers.Reserved:
        ask, now, r = self._controller.ask, self._controller.world.now, request
        return ask(lambda snapshot: reserve.reserve(snapshot, r.node, r.gpus, r.user, r.start, r.end, now(), peer.user))

    def _unreserve(self, request: requests.Unreserve, peer: Peer) -> node_answers.Reserved:
        ask, now = self._controller.ask, self._controller.world.now
        return ask(lambda snapshot: reserve.unreserve(snapshot, request.id, now(), peer.user))

    def _errand(self, request: requests.Errand, peer: Peer) -> node_answers.ErrandResult:
        """A server that does not answer is an answer too; one that there is not is none."""
        node = drain.known(self._controller.snapshot, request.node)
        if not 0 < request.wait <= MAX_ERRAND:
            raise UsageError(f"an errand may take at most {MAX_ERRAND:.0f} s", "ask for less")
        begin = time.monotonic()
        try:
            answer = self._run_errand(node, request.errand, request.fields, request.wait)
        except GpqError as error:
            answer = {"error": error.message}
        return node_answers.ErrandResult(request.node, answer, time.monotonic() - begin)

    def _measured(self, request: requests.Measured, peer: Peer) -> node_answers.Kept:
        ask, now = self._controller.ask, self._controller.world.now
        return ask(lambda snapshot: links.measured(snapshot, request, now()))

    def _reload(self, request: requests.Reload, peer: Peer) -> node_answers.Reloaded:
        return self._fleet.reload(force=request.force)

    def _shutdown(self, request: requests.Shutdown, peer: Peer) -> daemon_answers.DaemonInfo:
        answer = self._info(requests.Info(), peer)
        self._end()
        return answer

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _until_gone(self, names: Sequence[JobId], wait: float, hurry: Callable[[], bool]) -> set[JobId]:
        """Those of `names` that are still live after `wait` seconds, or sooner when `hurry()`."""
        controller, until = self._controller, deadline(wait)

        def still() -> set[JobId]:
            return {name for name in names if name in controller.snapshot.jobs}

        with controller.changed:
            first = True
            while (live := still()) and left(until) > 0 and (first or not hurry()):
                controller.changed.wait(min(left(until), 1.0))
                first = False
            return live

    def _wait(self, request: requests.Wait, peer: Peer) -> job_answers.JobList:
        names = resolve(request.jobs, self._controller.snapshot, self._past)
        self._until_gone(names, request.wait, peer.crowded)
        return self._rows(names)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _status(self, request: requests.Status, peer: Peer) -> job_answers.JobList:
        known = set(JobState)
        for state in request.states:
            if state not in known:
                raise UsageError(f"unknown state `{state}`", f"known are {', '.join(JobState)}")
        query = query_language.parse(request.query)
        if request.jobs:
            listed = self._rows(resolve(request.jobs, self._controller.snapshot, self._past))
            return msgspec.structs.replace(listed, jobs=query.answer(listed.jobs)) if request.query else listed
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
            found = self._past.history(user=users[0] if len(users) == 1 else "", states=finals, limit=searched)
            recent = sorted((job for job in found if job.id not in reader.snapshot.jobs), key=lambda job: job.id)
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
            warnings=[*reader.warnings(), *(_unsearched(unseen) if request.query and len(recent) == searched else [])],
        )

    def _rows(self, names: Sequence[JobId]) -> job_answers.JobList:
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
        return job_history.report(request, controller.snapshot, self._past, controller.world.now())

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
        held = [reserve.view(snapshot, each, now) for each in current(snapshot, now) if each.node in wanted]
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
            policy=self._about.config.policy,
            round_seconds=took[-1] if took else None,
            round_age=max(reader.now - reader.round.at, 0.0) if reader.round is not None else None,
            cluster_goodput=sum(found.goodput for job in live if job.replicas and (found := estimates.now_of(job))),
            now=event_text.stamp(reader.now),
            states=Counter(str(job.state) for job in live),
        )

    def _looked_at(self, reader: Reader, live: list[Job], request: requests.Top) -> list[job_answers.JobView]:
        """It is asked for every second, so that few of the jobs that ended are searched."""
        query = query_language.parse(request.query)
        if request.jobs:
            return query.answer(self._rows(resolve(request.jobs, reader.snapshot, self._past)).jobs)
        finals = [state for state in query.exactly("state") if state in TERMINAL]
        users = query.exactly("user")
        found = self._past.history(
            user=users[0] if len(users) == 1 else "", states=finals, limit=ENDED_IN_TOP if finals else RECENT_IN_TOP
        )
        return query.answer(reader.jobs([*live, *(job for job in found if job.id not in reader.snapshot.jobs)]))

    def _complete(self, request: requests.Complete, peer: Peer) -> daemon_answers.Words:
        return words(self._reader(), self._past, request)

    def _info(self, request: requests.Info, peer: Peer) -> daemon_answers.DaemonInfo:
        controller, about = self._controller, self._about
        snapshot = controller.snapshot
        took = list(controller.round_seconds)
        now = controller.world.now()
        metrics, problem = self.metrics()
        return daemon_answers.DaemonInfo(
            pid=os.getpid(),
            version=gpq.__version__,
            home=paths.home(),
            socket=paths.socket(),
            started_at=event_text.stamp(about.started_at),
            uptime_seconds=max(now - about.started_at, 0.0),
            policy=about.config.policy,
            interval=about.config.interval,
            epoch=about.epoch,
            jobs_live=len(snapshot.jobs),
            jobs_total=len(snapshot.jobs) + self._past.ended_count(),
            rounds=controller.rounds,
            round_ms_median=statistics.median(took) * 1000 if took else None,
            memory_mib=_resident_mib(),
            nodes={str(node.id): node_word(snapshot, node, now) for _, node in sorted(snapshot.nodes.items())},
            config_changed=self._fleet.config_changed(),
            metrics=metrics,
            metrics_problem=problem,
        )


def _unsearched(count: int) -> list[str]:
    return (
        [f"{count} jobs that ended earlier were not searched: `gpq status --all` with the query does"] if count else []
    )


def _without(snapshot: Snapshot, name: JobId, configured: Iterable[str]) -> list[str]:
    """The servers of a job that are not configured any more and told no end of it."""
    job = snapshot.jobs[name]
    if job.state not in HOLDS_DEVICES:
        return []
    told = {node for node, _ in job.exits}
    return [str(node) for node in job.nodes if node not in told and node not in configured]


def _resident_mib() -> float:
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, ValueError, IndexError) as error:
        raise GpqError(f"the daemon cannot read its own memory use: {error}") from None
