"""Copies what a server needs before an attempt may start there: the newest checkpoint, and the code
of a snapshot.

The start order is sent only when all servers of the attempt have everything. Daemons remember
nothing of transfers: what arrived before a restart is on the server, and the transfer continues
after it. If something cannot be copied, the start is refused for a temporary reason, so that the
job waits or goes elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpq.connectors.local import Channel, LocalConnector
from gpq.core.feasibility.checkpoints import Staging, apart, has_checkpoint, holders, lacking
from gpq.core.model.actions import Launch
from gpq.core.model.events import Event, Staged, StartRefused
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.clock import Clock
from gpq.daemon.files.transfer import GIVE_UP, LOOK, Abandoned, Gauge, Open, Task, Transfer
from gpq.errors import GpqError, NodeSilent

log = logging.getLogger(__name__)

PARALLEL = 8  # transfers of one attempt
OLD: Seconds = 3600.0  # seconds for which outcomes are remembered
ANSWER: Seconds = 20.0
LISTING: Seconds = 600.0  # to look at all files of a job

Key = tuple[JobId, int]
# an operation of a server. Raises NodeSilent, GpqError
AskNode = Callable[[NodeId, str, Mapping[str, Any], Seconds], Mapping[str, Any]]
# Starts a process for files on a server, with these words for its agent
OpenNode = Callable[[NodeId, Sequence[str], Callable[[], None]], Channel]


class Stays(GpqError):
    """Why a checkpoint cannot be restored on another server."""


class Stager:
    """`ask` is an operation of a server. `open_` starts a process there that sends or receives.
    `nudge` makes the servers of an attempt check at once what they lack. `codes` is the folder of
    the archives. All of it may be called from any thread."""

    def __init__(
        self,
        ask: AskNode,
        open_: OpenNode,
        *,
        view: Callable[[], Snapshot],
        inbox: Callable[[Sequence[Event]], None],
        nudge: Callable[[NodeId], None],
        clock: Clock,
        codes: str,
    ) -> None:
        self._ask = ask
        self._open = open_
        self._view = view
        self._inbox = inbox
        self._nudge = nudge
        self._clock = clock
        self._codes = codes
        self._tasks: dict[Key, Task] = {}
        self._lock = threading.Lock()
        self._gates: dict[tuple[str, NodeId], threading.Lock] = {}
        self._closing = False

    def close(self) -> None:
        self._closing = True

    def ready(self, launch: Launch) -> bool:
        """May the attempt start? If not, the missing files are on their way. Never blocks."""
        key = (launch.job, launch.attempt)
        with self._lock:
            task = self._tasks.get(key)
            if task is not None:
                return task.state == "done"
            snapshot = self._view()
            job = snapshot.jobs.get(launch.job)
            if (
                job is None
                or job.attempt != launch.attempt
                or not (job.spec.archives or lacking(snapshot, job, launch.placement))
            ):
                return True
            now = self._clock.elapsed()
            self._tasks = {
                name: task
                for name, task in self._tasks.items()
                if task.state == "running" or now - task.began <= OLD
            }
            task = self._tasks[key] = Task(launch, now)
        threading.Thread(
            target=self._work, args=(task,), name=f"staging-{launch.job}", daemon=True
        ).start()
        return False

    def progress(self, job: JobId) -> Staging | None:
        """The progress for the attempt that is starting. None if nothing is on its way."""
        with self._lock:
            tasks = [
                task
                for (name, _), task in self._tasks.items()
                if name == job and task.state == "running"
            ]
        return tasks[-1].progress() if tasks else None

    # -- one attempt, in a thread of its own -------------------------------------------------------

    def _work(self, task: Task) -> None:
        launch = task.launch
        try:
            self._bring(task)
        except Abandoned:
            task.state = "failed"
        except Exception as error:
            if not isinstance(error, GpqError):
                log.exception("copying files for attempt %d.%d failed", launch.job, launch.attempt)
            task.state = "failed"
            words = error.message if isinstance(error, GpqError) else repr(error)
            stays = words if isinstance(error, Stays) else ""
            reason = stays or f"gpq could not copy its files there: {words}"
            log.info("attempt %d.%d: %s", launch.job, launch.attempt, reason)
            if self._is_wanted(task):  # it is only refused for a while
                now, key = self._clock.now(), (launch.job, launch.attempt)
                refusals = [
                    StartRefused(now, *key, node, reason, transient=True, stays=stays)
                    for node, _ in launch.placement.parts
                ]
                self._inbox(refusals)
        else:
            task.state = "done"
            for node, _ in launch.placement.parts:
                self._nudge(node)

    def _is_wanted(self, task: Task) -> bool:
        launch = task.launch
        job = self._view().jobs.get(launch.job)
        starting = (
            job is not None and job.attempt == launch.attempt and job.state is JobState.STARTING
        )
        return starting and not self._closing

    def _bring(self, task: Task) -> None:
        """Copy everything that the attempt lacks, in parallel."""
        launch, snapshot = task.launch, self._view()
        job = snapshot.jobs.get(launch.job)
        if job is None:
            raise Abandoned
        places = apart(snapshot, launch.placement)
        with ThreadPoolExecutor(PARALLEL, "staging") as pool:
            transfers = [
                pool.submit(self._bring_archive, task, archive, node)
                for archive in launch.spec.archives
                for node in places
            ]
            nodes = lacking(snapshot, job, launch.placement)
            source = self._newest(task, job) if nodes else None
            if source is not None:
                transfers += [pool.submit(self._bring_files, task, source, node) for node in nodes]
            for transfer in transfers:
                transfer.result()

    def _bring_archive(self, task: Task, digest: str, node: NodeId) -> None:
        path = os.path.join(self._codes, f"{digest}.tar")
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise GpqError(
                f"the copy {digest[:12]} of its code or stdin is gone: {error.strerror}",
                "submit the job again",
            ) from None
        task.what = task.what or "its code"
        self._transfer(
            task,
            lambda _: LocalConnector().spawn(["cat", "--", path]),
            (node, digest),
            [("code", node)],
            lambda: digest in self._ask(node, "kept", {}, ANSWER)["code"],
            Gauge(total=size),
        )

    def _bring_files(self, task: Task, source: NodeId, node: NodeId) -> None:
        launch, gauge = task.launch, Gauge()
        self._transfer(
            task,
            lambda check: self._open(source, ["--send", str(launch.job)], check),
            (node, str(launch.job)),
            [("files", source), ("files", node)],
            lambda: False,
            gauge,
        )
        if gauge.moved:
            moved, seconds = gauge.moved, gauge.seconds
            now, key = self._clock.now(), (launch.job, launch.attempt)
            self._inbox([Staged(now, *key, source, node, moved, seconds)])

    def _transfer(
        self,
        task: Task,
        source: Open,
        target: tuple[NodeId, str],
        gates: Sequence[tuple[str, NodeId]],
        is_there: Callable[[], bool],
        gauge: Gauge,
    ) -> None:
        """`target` is a server and what it receives: a job's number, or an archive's SHA-256."""
        node, subject = target
        task.gauges.append(gauge)
        Transfer(
            source,
            lambda check: self._open(node, ["--receive", subject], check),
            lambda: self._turn(task, gauge, gates),
            is_there,
            lambda: self._is_wanted(task),
            gauge,
        ).run()
        if gauge.moved:
            log.info(
                "attempt %d.%d: copied %d bytes of %s to %s in %.1f s",
                task.launch.job, task.launch.attempt, gauge.moved, task.what, node, gauge.seconds,
            )  # fmt: skip

    @contextlib.contextmanager
    def _turn(self, task: Task, gauge: Gauge, keys: Sequence[tuple[str, NodeId]]) -> Iterator[None]:
        """One after the other, because two on one line are no faster. All take their gates in the
        same order."""
        with contextlib.ExitStack() as stack:
            for key in sorted(keys):
                with self._lock:
                    gate = self._gates.setdefault(key, threading.Lock())
                while not gate.acquire(timeout=LOOK):
                    gauge.note = "another transfer goes first"
                    if not self._is_wanted(task):
                        raise Abandoned
                stack.callback(gate.release)
            yield

    # -- the newest checkpoint ---------------------------------------------------------------------

    def _newest(self, task: Task, job: Job) -> NodeId | None:
        """The server that has it. None if there is nothing to copy. Raises NodeSilent if no server
        that has it answered for GIVE_UP seconds, Abandoned, and Stays."""
        until = time.monotonic() + GIVE_UP
        source = job.files.node if job.files else ""
        while True:
            snapshot = self._view()
            nodes = holders(snapshot, job)
            task.what = f"its checkpoint from {next(iter(nodes), source)}"
            for node in nodes:
                with contextlib.suppress(NodeSilent):
                    is_there = self._look(node, job.id)["count"]
                    return node if is_there else self._elsewhere(snapshot, job, nodes)
            if not has_checkpoint(job):
                return None
            task.note = f"server {nodes[-1] if nodes else source} does not answer"
            if time.monotonic() > until:
                raise NodeSilent(task.note, "`gpq nodes` shows since when and why")
            if not self._is_wanted(task):
                raise Abandoned
            time.sleep(LOOK)

    def _look(self, node: NodeId, job: JobId) -> Mapping[str, Any]:
        """What the server has of the job, as its errand `files` answers."""
        errand = {"errand": "files", "fields": {"job": job}, "limit": LISTING}
        answer: Mapping[str, Any] = self._ask(node, "errand", errand, LISTING)["answer"]
        if answer.get("error"):
            raise GpqError(f"server {node}: {answer['error']}", "try again")
        if answer["stays"]:
            raise Stays(f"its checkpoint cannot leave server {node}: {answer['stays']}")
        return answer

    def _elsewhere(self, snapshot: Snapshot, job: Job, nodes: Sequence[NodeId]) -> NodeId | None:
        """The server with the newest checkpoint of those not in `nodes`, after these lost it."""
        ages: dict[NodeId, list[int]] = {}
        for node in sorted(snapshot.nodes):
            if node in nodes or snapshot.nodes[node].state is not NodeState.UP:
                continue
            with contextlib.suppress(NodeSilent):
                answer = self._look(node, job.id)
                if answer["count"]:
                    ages[node] = list(answer["age"])
        return max(ages, key=lambda node: ages[node], default=None)
