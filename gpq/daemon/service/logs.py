"""Answers `gpq logs`: which attempts there are, and a piece of one; waits for more while the
attempt goes on."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpq.control.controller import Controller
from gpq.core.model.events import Launched
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job
from gpq.core.model.units import JobId, NodeId
from gpq.daemon.clock.deadlines import deadline, left
from gpq.errors import GpqError, NodeSilent, NotFound, UsageError
from gpq.ports import History
from gpq.rpc.job_answers import LogChunk
from gpq.rpc.requests import Logs

# (node, job, attempt, offset, limit) -> {"data": base64, "offset", "size"}; raises NodeSilent when
# the node is
Tail = Callable[[NodeId, JobId, int, int, int], Mapping[str, Any]]

MAX_PIECE = 4 << 20  # bytes of one answer
FIRST_PIECE, LEAST_PIECE = 32 << 10, 4 << 10  # bytes asked of a node at once
PIECE_SECONDS = 0.5  # that one should take: whatever else the node has to say waits for as long
FIRST_PAUSE, LAST_PAUSE = 0.05, 0.5  # between looks at a log that does not grow
SILENT_PAUSE = 1.0  # seconds after which a silent node is told of


class LogReader:
    def __init__(self, controller: Controller, past: History, tail: Tail) -> None:
        self._controller = controller
        self._past = past
        self._tail = tail
        self._pieces: dict[NodeId, int] = {}  # bytes that each node brings in about PIECE_SECONDS

    def read(self, job: JobId, request: Logs, hurry: Callable[[], bool]) -> LogChunk:
        """A piece from `offset`, at once when there is one, else after `wait` seconds or when
        `hurry()` says so, or with `silent` soon after its node stopped answering: what is to come
        will come. Of an attempt that is over and that its node knows nothing of, `silent` says so,
        and the piece is its last.

        Raises NotFound for an attempt or node that is none, and what the node says when it cannot
        be asked.
        """
        if request.offset < 0 or request.attempt < 0 or request.tail < 0:
            raise UsageError("offset, attempt and tail cannot be negative", "see `gpq logs --help`")
        until, pause = deadline(request.wait), FIRST_PAUSE
        while True:
            chunk = self._look(job, request)
            if chunk.data or chunk.ended or left(until) <= 0 or (hurry() and pause > FIRST_PAUSE):
                return chunk
            if chunk.silent:
                until = min(until, deadline(SILENT_PAUSE))
            with self._controller.changed:
                self._controller.changed.wait(min(pause, left(until)))
            pause = min(pause * 2, LAST_PAUSE)

    def _look(self, name: JobId, request: Logs) -> LogChunk:
        job = self._job(name)
        launches = {
            event.attempt: event
            for event in self._past.events(job=name, kinds=(Launched,))
            if isinstance(event, Launched)
        }
        numbers = sorted(launches)
        if not launches and request.attempt == 0:
            over = name not in self._controller.snapshot.jobs
            return LogChunk(0, "", "", 0, over, [], [], str(job.state))
        attempt = request.attempt or numbers[0]
        if attempt not in launches:
            listing = ", ".join(map(str, numbers)) or "none yet"
            raise NotFound(f"job {name} has no attempt {attempt}", f"its attempts: {listing}")
        nodes = [str(node) for node, _ in launches[attempt].placement.parts]
        node = request.node or nodes[0]
        if node not in nodes:
            raise NotFound(
                f"attempt {attempt} of job {name} did not run on `{node}`",
                f"it ran on {', '.join(nodes)}",
            )
        # Read before the log is: what is written before the end of an attempt is then surely seen.
        # The journal may know of a launch that this snapshot does not.
        over = job.attempt > attempt or (job.attempt == attempt and job.state not in HOLDS_DEVICES)
        if job.state in TERMINAL and job.first_started_at is None:
            # its node refused it, and has nothing of it
            return LogChunk(attempt, node, "", request.offset, True, numbers, nodes, str(job.state))
        limit = min(max(request.limit, 1), MAX_PIECE)
        offset = request.offset
        try:
            if request.tail:
                size = int(self._piece(NodeId(node), name, attempt, 0, 1)["size"])
                offset = max(size - request.tail, 0)
            piece = self._piece(NodeId(node), name, attempt, offset, limit)
        except GpqError as error:
            silent = isinstance(error, NodeSilent)
            if not (silent or over) and job.attempt == attempt and node in job.started_nodes:
                raise
            # It is silent, or has lost the attempt, or is to start it.
            message = error.message if silent or over else ""
            ended = over and not silent
            return LogChunk(
                attempt, node, "", offset, ended, numbers, nodes, str(job.state), message
            )
        data, offset = str(piece["data"]), int(piece["offset"])
        ended = over and offset >= int(piece["size"])
        skipped = int(piece.get("skipped", 0))
        return LogChunk(
            attempt, node, data, offset, ended, numbers, nodes, str(job.state), skipped=skipped
        )

    def _piece(
        self, node: NodeId, job: JobId, attempt: int, offset: int, limit: int
    ) -> Mapping[str, Any]:
        """At most as much as the way to the node carries soon: its other news come over the same
        one."""
        size = min(limit, self._pieces.get(node, FIRST_PIECE))
        began = time.monotonic()
        try:
            piece = self._tail(node, job, attempt, offset, size)
        except NodeSilent:
            self._pieces[node] = max(LEAST_PIECE, size // 2)
            raise
        seconds = time.monotonic() - began
        if not _makes_sense(piece, offset):  # who reads on from there would never come to an end
            raise GpqError(
                f"what node {node} says of the log makes no sense", "see `gpq daemon logs`"
            )
        full = int(piece["offset"]) - offset - int(piece.get("skipped", 0)) >= size
        if full and size >= LEAST_PIECE:  # such a one tells how fast it is
            target_size = int(size * PIECE_SECONDS / max(seconds, 1e-3))
            self._pieces[node] = max(LEAST_PIECE, min(target_size, 2 * size, MAX_PIECE))
        return piece

    def _job(self, name: JobId) -> Job:
        job = self._controller.snapshot.jobs.get(name)
        if job is not None:
            return job
        ended_jobs = self._past.history(ids=[name])
        if ended_jobs:
            return ended_jobs[0]
        raise NotFound(f"there is no job {name}", "`gpq status` lists what there is")


def _makes_sense(piece: Mapping[str, Any], offset: int) -> bool:
    """Does it go on from `offset`, by as much as it holds?"""
    try:
        data = base64.b64decode(piece["data"], validate=True)
        skipped = int(piece.get("skipped", 0))
        return (
            int(piece["offset"]) == offset + skipped + len(data)
            and int(piece["size"]) >= 0
            and skipped >= 0
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return False
