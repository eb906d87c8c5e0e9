"""Requests that change something: each becomes events through the controller, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from gpq import pace
from gpq.control import dependencies, edit, job_requests, node_requests
from gpq.control.controller import Controller
from gpq.control.selectors import resolve
from gpq.control.submit import ask_settled, keep_archive
from gpq.core.feasibility.leases import silence
from gpq.core.model.jobs import HOLDS_DEVICES, Dependency, Job, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.errors import UsageError
from gpq.outward import Notify
from gpq.pace import deadline, left
from gpq.ports import History, Peer
from gpq.rpc import codec, job_answers, requests
from gpq.rpc.requests import Request

T = TypeVar("T")
Handlers = Mapping[type[Request], Callable[[Any, Peer], msgspec.Struct | codec.Stream]]


class Changes:
    """Answers requests about jobs, servers and reservations from any thread. `until_gone` waits for
    the end of jobs."""

    def __init__(
        self,
        controller: Controller,
        past: History,
        node_names: Callable[[], Collection[str]],
        targets: Callable[[object], Notify],
    ) -> None:
        self._controller = controller
        self._past = past
        self._node_names = node_names
        self._targets = targets
        self.handlers: Handlers = {
            requests.Cancel: self._cancel,
            requests.Hold: partial(self._change, job_requests.hold),
            requests.Release: partial(self._change, job_requests.release),
            requests.Requeue: self._requeue,
            requests.Edit: self._edit,
            requests.Drain: partial(self._ask, node_requests.drain),
            requests.Undrain: partial(self._ask, node_requests.undrain),
            requests.Reserve: partial(self._ask, node_requests.reserve),
            requests.Unreserve: partial(self._ask, node_requests.unreserve),
            requests.Measured: partial(self._ask, node_requests.record_link),
        }

    def _cancel(self, request: requests.Cancel, peer: Peer) -> job_answers.CancelResult:
        """Ask, then wait until each job has left the snapshot. It leaves only when none of its
        processes is left."""
        controller = self._controller
        now = controller.world.now
        names = resolve(request.jobs, controller.snapshot, self._past)

        def build(
            snapshot: Snapshot,
        ) -> tuple[Sequence[Any], tuple[set[JobId], dict[JobId, list[str]]]]:
            events = job_requests.cancel(snapshot, names, now(), peer.user)
            absent_servers = {
                name: _absent_servers(snapshot.jobs[name], self._node_names())
                for name in names
                if name in snapshot.jobs
            }
            return events, (set(names) - set(snapshot.jobs), absent_servers)

        ended_before, absent_servers = controller.ask(build)
        live_names = self.until_gone(
            names, request.wait, hurry=lambda: all(self._unheard(names).values())
        )
        gone_names = [name for name in names if name not in live_names]
        new_names = [name for name in gone_names if name not in ended_before]
        cancelled_names = {
            job.id for job in self._past.history(ids=new_names) if job.state is JobState.CANCELLED
        }
        given_up_names = {name for name in cancelled_names if absent_servers[name]}
        return job_answers.CancelResult(
            cancelled=_ids(gone_names, cancelled_names - given_up_names),
            ended=_ids(gone_names, set(gone_names) - cancelled_names),
            remaining=_ids(names, live_names),
            waiting=_by_id(self._unheard(names), live_names),
            given_up=_by_id(absent_servers, given_up_names),
        )

    def _unheard(self, names: Sequence[JobId]) -> dict[JobId, str]:
        """For jobs that are still live: the silence that an order to them waits for, or "" if it
        was given.

        Not for servers that gpq has not heard of yet, or only a moment ago, and never for servers
        that are not configured.
        """
        snapshot, now = self._controller.snapshot, self._controller.world.now()
        silences = dict.fromkeys((name for name in names if name in snapshot.jobs), "")
        for name in silences:
            job_silence = silence(snapshot, snapshot.jobs[name], now)
            if (
                job_silence is not None
                and job_silence.seconds >= pace.FIRST_NEWS
                and snapshot.nodes.keys() >= set(job_silence.nodes)
            ):
                silences[name] = str(job_silence)
        return silences

    def _requeue(self, request: requests.Requeue, peer: Peer) -> job_answers.Changed:
        controller, past = self._controller, self._past
        words = [word.strip() for text in request.jobs for word in text.split(",")]
        selections = [resolve([word], controller.snapshot, past) for word in words]
        names = list(dict.fromkeys(name for names in selections for name in names))
        chosen = {selection[0] for selection in selections if len(selection) == 1}
        judge = job_requests.requeue_fresh if request.fresh else job_requests.requeue

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Changed]:
            past_jobs = self._ended_jobs(snapshot, names)
            left = {
                job.id
                for job in past_jobs
                if job.state is JobState.COMPLETED and job.id not in chosen
            }
            ended_jobs = [job for job in past_jobs if job.id not in left]
            earlier = {one.job for job in ended_jobs for one in job.spec.after}
            states = self._ended_jobs(snapshot, sorted(earlier))

            def ready(job: Job, after: Sequence[Dependency]) -> tuple[Dependency, ...]:
                for archive in job.spec.archives:
                    keep_archive(archive)
                return dependencies.open_dependencies(
                    after, snapshot, lambda _: states, past.removed_ids, dependencies.UNTIE
                )

            of_ended = job_requests.requeue_ended(ended_jobs, request.fresh, ready)
            again, now = [name for name in names if name not in left], controller.world.now()
            events, answer = job_requests.changes(
                snapshot, again, ended_jobs, judge, now, peer.user, of_ended, past.removed_ids
            )
            if left:
                line = f"completed and left out: {len(left)}. To run one again, name it alone"
                answer = msgspec.structs.replace(answer, unchanged=[*answer.unchanged, line])
            return events, answer

        return ask_settled(controller, build)

    def _edit(self, request: requests.Edit, peer: Peer) -> job_answers.Changed:
        edit.check(request)
        controller, past = self._controller, self._past
        names = resolve(request.jobs, controller.snapshot, past)
        after = self._conditions(request.changes.get("after"))
        notify = self._targets(request.changes.get("notify"))

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Changed]:
            ended_jobs = self._ended_jobs(snapshot, names)
            ends = edit.judge(
                request,
                after,
                snapshot,
                lambda ids: past.history(ids=ids),
                past.removed_ids,
                self._node_names(),
                notify,
            )
            now = controller.world.now()
            return job_requests.changes(
                snapshot, names, ended_jobs, ends, now, peer.user, ends, past.removed_ids
            )

        return ask_settled(controller, build)

    def _conditions(self, words: object) -> Sequence[Dependency] | None:
        """As typed. None if they do not change. Raises UsageError."""
        if words is None:
            return None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError("`after` must be a list of jobs with conditions", dependencies.EXAMPLE)
        return dependencies.dependencies(words, self._controller.snapshot, self._past)

    def _change(
        self,
        judge: Callable[[Job, float, str], job_requests.Verdict],
        request: requests.Hold | requests.Release,
        peer: Peer,
    ) -> job_answers.Changed:
        controller = self._controller
        now = controller.world.now
        names = resolve(request.jobs, controller.snapshot, self._past)

        def build(snapshot: Snapshot) -> tuple[Sequence[Any], job_answers.Changed]:
            return job_requests.changes(snapshot, names, (), judge, now(), peer.user)

        return controller.ask(build)

    def _ask(
        self,
        build: Callable[[Snapshot, Any, float, str], tuple[Sequence[Any], T]],
        request: Request,
        peer: Peer,
    ) -> T:
        now = self._controller.world.now
        return self._controller.ask(lambda snapshot: build(snapshot, request, now(), peer.user))

    def _ended_jobs(self, snapshot: Snapshot, names: Iterable[JobId]) -> list[Job]:
        """Those of `names` that are not live."""
        return self._past.history(ids=[name for name in names if name not in snapshot.jobs])

    def until_gone(
        self, names: Sequence[JobId], wait: float, hurry: Callable[[], bool]
    ) -> set[JobId]:
        """Those of `names` that are still live after `wait` seconds, or sooner if `hurry()`."""
        controller, until = self._controller, deadline(wait)

        def still() -> set[JobId]:
            return {name for name in names if name in controller.snapshot.jobs}

        with controller.changed:
            first = True
            while (live := still()) and left(until) > 0 and (first or not hurry()):
                controller.changed.wait(min(left(until), 1.0))
                first = False
            return live


def _ids(names: Iterable[JobId], choice: Collection[JobId]) -> list[int]:
    """Those of `names` that are in it, in their order."""
    return [int(name) for name in names if name in choice]


def _by_id(values: Mapping[JobId, T], choice: Collection[JobId]) -> dict[int, T]:
    """For the jobs in `choice` that have something to report."""
    return {int(name): value for name, value in values.items() if value and name in choice}


def _absent_servers(job: Job, node_names: Iterable[str]) -> list[str]:
    """The servers of a live job that nobody will ever hear of again: they are no longer configured
    and reported no end of it."""
    if job.state not in HOLDS_DEVICES:
        return []
    exited_nodes = {node for node, _ in job.exits}
    return [str(node) for node in job.nodes if node not in exited_nodes and node not in node_names]
