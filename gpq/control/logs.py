"""Answers `gpq logs`: which attempts there are, and a piece of one. Waits for more while the
attempt runs."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpq.control.controller import Controller
from gpq.control.selectors import find_job
from gpq.core.model.events import Launched
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job
from gpq.core.model.units import JobId, NodeId
from gpq.errors import GpqError, NodeSilent, NotFound, UsageError
from gpq.pace import deadline, left
from gpq.ports import History, Tail
from gpq.rpc.job_answers import LogChunk
from gpq.rpc.requests import Logs

MAX_PIECE = 4 << 20  # bytes of one answer
FIRST_PIECE, LEAST_PIECE = 32 << 10, 4 << 10  # bytes requested from a server at once
# seconds that one should take: everything else that the server has to say waits for as long
PIECE_SECONDS = 0.5
FIRST_PAUSE, LAST_PAUSE = 0.05, 0.5  # between checks of a log that does not grow
SILENT_PAUSE = 1.0  # seconds after which a silent server is reported


class _Source(NamedTuple):
    """Whose log is read, and which others there are."""

    job: Job
    attempt: int
    attempts: list[int]
    node: str
    nodes: list[str]

    @property
    def is_over(self) -> bool:
        """Has the attempt ended?"""
        job = self.job
        return job.attempt > self.attempt or (
            job.attempt == self.attempt and job.state not in HOLDS_DEVICES
        )

    @property
    def is_running(self) -> bool:
        """Has the server said that it runs there?"""
        return self.job.attempt == self.attempt and self.node in self.job.started_nodes

    def chunk(
        self, data: str, offset: int, *, ended: bool, silent: str = "", skipped: int = 0
    ) -> LogChunk:
        return LogChunk(
            self.attempt,
            self.node,
            data,
            offset,
            ended,
            self.attempts,
            self.nodes,
            str(self.job.state),
            silent,
            skipped=skipped,
        )


class LogReader:
    def __init__(self, controller: Controller, past: History, tail: Tail) -> None:
        self._controller = controller
        self._past = past
        self._tail = tail
        self._pieces: dict[NodeId, int] = {}  # bytes that each server sends in about PIECE_SECONDS

    def read(self, job: JobId, request: Logs, hurry: Callable[[], bool]) -> LogChunk:
        """A piece from `offset`, at once if there is one. Otherwise after `wait` seconds or when
        `hurry()` says so. If its server stops answering, soon after that, with `silent`: the rest
        may come later. If the attempt is over and its server knows nothing of it, `silent` says so,
        and the piece is its last.

        Raises NotFound for an invalid attempt or server, and the server's own error if it cannot be
        asked.
        """
        if min(request.offset, request.attempt, request.tail) < 0:
            raise UsageError("offset, attempt and tail cannot be negative", "see `gpq logs --help`")
        until, pause = deadline(request.wait), FIRST_PAUSE
        while True:
            chunk = self._look(job, request)
            if chunk.data or chunk.ended or left(until) <= 0:
                return chunk
            if hurry() and pause > FIRST_PAUSE:
                return chunk
            if chunk.silent:
                until = min(until, deadline(SILENT_PAUSE))
            with self._controller.changed:
                self._controller.changed.wait(min(pause, left(until)))
            pause = min(pause * 2, LAST_PAUSE)

    def _look(self, name: JobId, request: Logs) -> LogChunk:
        # Read before the log, so that everything written before the end of an attempt is surely
        # seen. The journal may know of a launch that this snapshot does not.
        job = find_job(name, self._controller.snapshot, self._past)
        launches = {
            event.attempt: event
            for event in self._past.events(job=name, kinds=(Launched,))
            if isinstance(event, Launched)
        }
        if not launches and request.attempt == 0:
            is_over = name not in self._controller.snapshot.jobs
            return LogChunk(0, "", "", 0, is_over, [], [], str(job.state))
        source = _source(job, launches, request)
        if job.state in TERMINAL and job.first_started_at is None:
            # its server refused it, and has nothing of it
            return source.chunk("", request.offset, ended=True)
        offset = request.offset
        try:
            if request.tail:  # the last bytes
                offset = max(int(self._piece(source, 0, 1)["size"]) - request.tail, 0)
            piece = self._piece(source, offset, min(max(request.limit, 1), MAX_PIECE))
        except NodeSilent as error:
            return source.chunk("", offset, ended=False, silent=error.message)
        except GpqError as error:
            if source.is_over:  # and lost there
                return source.chunk("", offset, ended=True, silent=error.message)
            if source.is_running:
                raise
            return source.chunk("", offset, ended=False)  # it will start there
        offset = int(piece["offset"])
        return source.chunk(
            str(piece["data"]),
            offset,
            ended=source.is_over and offset >= int(piece["size"]),
            skipped=int(piece.get("skipped", 0)),
        )

    def _piece(self, source: _Source, offset: int, limit: int) -> Mapping[str, Any]:
        """At most as much as the connection to the server soon carries, because its other news use
        the same one."""
        node = NodeId(source.node)
        size = min(limit, self._pieces.get(node, FIRST_PIECE))
        began = time.monotonic()
        try:
            piece = self._tail(node, source.job.id, source.attempt, offset, size)
        except NodeSilent:
            self._pieces[node] = max(LEAST_PIECE, size // 2)
            raise
        seconds = time.monotonic() - began
        if not _makes_sense(piece, offset):  # a reader that continues from there would never finish
            raise GpqError(
                f"server {node} sent an invalid answer about the log", "see `gpq daemon logs`"
            )
        full = int(piece["offset"]) - offset - int(piece.get("skipped", 0)) >= size
        if full and size >= LEAST_PIECE:  # such a piece shows how fast it is
            target_size = int(size * PIECE_SECONDS / max(seconds, 1e-3))
            self._pieces[node] = max(LEAST_PIECE, min(target_size, 2 * size, MAX_PIECE))
        return piece


def _source(job: Job, launches: Mapping[int, Launched], request: Logs) -> _Source:
    """Raises NotFound for an attempt or a server that is not the job's."""
    attempts = sorted(launches)
    attempt = request.attempt or attempts[0]
    if attempt not in launches:
        listing = ", ".join(map(str, attempts)) or "none yet"
        raise NotFound(f"job {job.id} has no attempt {attempt}", f"it has attempts: {listing}")
    nodes = [str(node) for node, _ in launches[attempt].placement.parts]
    node = request.node or nodes[0]
    if node not in nodes:
        raise NotFound(
            f"attempt {attempt} of job {job.id} did not run on `{node}`",
            f"it ran on {', '.join(nodes)}",
        )
    return _Source(job, attempt, attempts, node, nodes)


def _makes_sense(piece: Mapping[str, Any], offset: int) -> bool:
    """Does it continue from `offset` by as much as it holds?"""
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
