"""What the daemon does with each request: reads from the newest snapshot, changes through the
controller."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable

import msgspec
import psutil

import gpq
from gpq import outward, paths
from gpq.config import FileConfig
from gpq.control import event_text, node_requests
from gpq.control.changes import Changes, Handlers
from gpq.control.controller import Controller
from gpq.control.reader import node_word
from gpq.control.readings import Readings
from gpq.control.selectors import resolve
from gpq.control.submit import Submitting
from gpq.core.feasibility.gates import halted_jobs
from gpq.core.model.jobs import JobState
from gpq.core.model.units import JobId
from gpq.daemon.files.cleaning import Cleaning
from gpq.daemon.nodes.registry import NodeRegistry
from gpq.daemon.nodes.world import LiveWorld
from gpq.errors import GpqError, UsageError
from gpq.ports import Peer
from gpq.rpc import codec, daemon_answers, job_answers, node_answers, requests
from gpq.rpc.requests import Request
from gpq.store.sqlite import SqliteStore

MAX_WAIT = 600.0  # seconds that one request may wait
MAX_ERRAND = 120.0  # seconds


class Service:
    """`handle` answers any request, from any thread. `end` is called when somebody asks the daemon
    to end. `unsent` looks up notifications about a job that could not be sent, and `warnings` are
    lines for the head of a listing."""

    def __init__(
        self,
        controller: Controller,
        store: SqliteStore,
        world: LiveWorld,
        registry: NodeRegistry,
        settings: FileConfig,
        end: Callable[[], None],
        *,
        unsent: Callable[[JobId], list[str]],
        warnings: Callable[[], list[str]],
    ) -> None:
        self._controller, self._store, self._world = controller, store, world
        self._registry, self._end = registry, end
        self.cleaning = Cleaning(controller, store)
        self._started_at = world.now()
        # where they are served, or why not
        self.metrics: Callable[[], tuple[str, str]] = lambda: ("", "")
        submissions = Submitting(
            controller,
            store,
            lambda: registry.names,
            grace=settings.grace,
            lease=settings.requeue_on_lost,
            # as of its start. Targets added since then are known as well
            notify=outward.notify(settings.notify),
            accept=settings.accept,
        )
        self.readings = Readings(
            controller, store, world.tail, world.stager.progress, unsent, warnings
        )
        self._changes = Changes(controller, store, lambda: registry.names, submissions.targets)
        own_handlers: Handlers = {
            requests.Submit: submissions.submit,
            requests.Wait: self._wait,
            requests.Errand: self._errand,
            requests.Info: self._info,
            requests.Reload: lambda request, peer: registry.reload(force=request.force),
            requests.Clean: self._clean,
            requests.Shutdown: self._shutdown,
        }
        self._handlers = {**self.readings.handlers, **self._changes.handlers, **own_handlers}

    def handle(self, request: Request, peer: Peer) -> msgspec.Struct | codec.Stream:
        """The answer. Raises GpqError."""
        wait = getattr(request, "wait", 0.0)
        if not 0.0 <= wait <= MAX_WAIT:
            raise UsageError(f"a request may wait at most {MAX_WAIT:.0f} s", "repeat the request")
        self._world.on_peer(peer.pid)
        return self._handlers[type(request)](request, peer)

    def _wait(self, request: requests.Wait, peer: Peer) -> job_answers.JobList:
        names = resolve(request.jobs, self._controller.snapshot, self._store)

        def is_vain() -> bool:
            snapshot = self._controller.snapshot
            live = [snapshot.jobs[name] for name in names if name in snapshot.jobs]
            if any(job.state is not JobState.HELD and not job.awaits for job in live):
                return False  # nearly always
            return halted_jobs(snapshot).keys() >= {job.id for job in live}

        self._changes.until_gone(names, request.wait, lambda: peer.crowded() or is_vain())
        return self.readings.rows(names)

    def _errand(self, request: requests.Errand, peer: Peer) -> node_answers.ErrandResult:
        """A server that does not answer is an answer too. A server that does not exist is not."""
        node = node_requests.find_node(self._controller.snapshot, request.node)
        if not 0 < request.wait <= MAX_ERRAND:
            raise UsageError(f"an errand may take at most {MAX_ERRAND:.0f} s", "ask for less time")
        begin = time.monotonic()
        try:
            answer = self._world.errand(node, request.errand, request.fields, request.wait)
        except GpqError as error:
            answer = {"error": error.message}
        return node_answers.ErrandResult(request.node, answer, time.monotonic() - begin)

    def _clean(self, request: requests.Clean, peer: Peer) -> node_answers.Cleaned:
        if not 0.0 <= request.older < math.inf:
            raise UsageError("`older` must be a number of seconds, 0 or above")
        before, removed = self._world.now() - request.older, not request.dry_run
        count = self.cleaning.remove(before) if removed else len(self.cleaning.old(before))
        return node_answers.Cleaned(count, event_text.stamp(before), removed)

    def _shutdown(self, request: requests.Shutdown, peer: Peer) -> daemon_answers.DaemonInfo:
        answer = self._info(requests.Info(), peer)
        self._end()
        return answer

    def _info(self, request: requests.Info, peer: Peer) -> daemon_answers.DaemonInfo:
        controller = self._controller
        snapshot = controller.snapshot
        durations = list(controller.round_seconds)
        now = controller.world.now()
        metrics, problem = self.metrics()
        return daemon_answers.DaemonInfo(
            pid=os.getpid(),
            version=gpq.__version__,
            home=paths.home(),
            socket=paths.socket(),
            started_at=event_text.stamp(self._started_at),
            uptime_seconds=max(now - self._started_at, 0.0),
            policy=snapshot.config.policy,
            interval=snapshot.config.interval,
            epoch=self._store.epoch,
            jobs_live=len(snapshot.jobs),
            jobs_total=len(snapshot.jobs) + self._store.ended_count(),
            rounds=controller.rounds,
            round_ms_median=statistics.median(durations) * 1000 if durations else None,
            memory_mib=psutil.Process().memory_info().rss / (1 << 20),
            nodes={
                str(node.id): node_word(snapshot, node, now)
                for _, node in sorted(snapshot.nodes.items())
            },
            config_changed=self._registry.config_changed(),
            metrics=metrics,
            metrics_problem=problem,
        )
