"""The log of a job over all its attempts, piece by piece, as long as it grows."""

from __future__ import annotations

import base64
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gpq.client.connection import Lasting
from gpq.client.following import BEGINNING, ENDED, Watcher
from gpq.errors import GpqError, NotFound, UsageError
from gpq.rpc import job_answers, requests
from gpq.rpc.job_answers import LogChunk

# Reads the log at (attempt, offset), or so many bytes before its end
Read = Callable[[int, int, int], LogChunk]
# bytes before an attempt's end to look at first, and the factor for each further look
FIRST_WINDOW, GROWTH = 64 << 10, 8

WAITING = ("pending", "held")
LOG_SLICE = 20.0  # seconds that one request waits for more of a log
PAUSE = 0.5  # seconds between two looks for the next attempt


def log(
    daemon: Lasting,
    watcher: Watcher,
    job: str,
    only: int,
    node: str,
    *,
    follow: bool,
    lines: int | None = None,
) -> Iterator[job_answers.LogChunk]:
    """The pieces in order. `lines` keeps the last N lines, None all.

    Empty pieces are left out, except the first of each attempt and a last one with notes. The
    watcher gets these, too. If the server of an attempt does not answer, an empty piece says so and
    the next attempt follows. Raises GpqError for a job without a log, and if no server of the last
    attempt answers.
    """
    row = newest(daemon, job, watcher)
    if row is not None:
        job = str(row.id)  # a selector such as `@` keeps the meaning that it had at first
        if row.started_at is None and row.state in (*WAITING, *ENDED):  # it has no log yet
            if not follow or row.state in ENDED:
                raise _no_log(row)
            watcher.note(f"{_start_note(row)}: see `gpq why {row.id}`")
    attempt, offset = only, 0
    if lines is not None:
        attempt, offset = tail_start(_reader(daemon, job, node), only, lines)
    any_output = False
    follower = _LogFollower(
        daemon,
        watcher,
        job,
        node,
        attempt=attempt,
        offset=offset,
        follow=follow,
        every=not only,
    )
    for piece in follower.pieces():
        any_output = any_output or bool(piece.data or piece.silent)
        yield piece
    if any_output:
        return
    row = newest(daemon, job)
    if row is not None and row.started_at is None:
        raise _no_log(row)


def _reader(daemon: Lasting, job: str, node: str) -> Read:
    def read(attempt: int, offset: int, tail: int) -> job_answers.LogChunk:
        name = node
        if node.isdigit():
            first = daemon.call(requests.Logs(job, attempt, limit=1), job_answers.LogChunk)
            name = ""
            if first.attempt:
                name = _with_rank(first, int(node))
        return daemon.call(
            requests.Logs(job, attempt, name, offset, tail=tail), job_answers.LogChunk
        )

    return read


class _LogFollower:
    """Reads a log piece by piece. `node` is a name, a rank, or "" for the first. With `every`,
    reads all attempts from this one."""

    def __init__(
        self,
        daemon: Lasting,
        watcher: Watcher,
        job: str,
        node: str,
        *,
        attempt: int,
        offset: int,
        follow: bool,
        every: bool,
    ) -> None:
        self._daemon, self._watcher = daemon, watcher
        self._job, self._node = job, node
        self._attempt, self._offset = attempt, offset
        self._follow, self._every = follow, every
        self._name = "" if node.isdigit() else node  # of the node, once known
        self._silence = ""

    def pieces(self) -> Iterator[job_answers.LogChunk]:
        current_attempt = 0  # the last attempt that yielded a piece
        is_over = False
        while not is_over:
            piece = self._read()
            if not self._name and self._node.isdigit():
                self._name = _with_rank(piece, int(self._node))
                if self._name != piece.node:
                    continue
            next_attempt = 0  # none, or none yet
            if self._every:
                later = (attempt for attempt in piece.attempts if attempt > piece.attempt)
                next_attempt = next(later, 0)
            self._note_silence(piece, next_attempt)
            is_first = next_attempt > 0 if piece.silent else piece.attempt != current_attempt
            is_new = bool(piece.data) or is_first
            if is_new:
                current_attempt = piece.attempt
                yield piece
            is_over = self._go_on(piece, next_attempt)
            if is_over and piece.notes:
                if not is_new:
                    yield piece
                self._watcher.note(*piece.notes)

    def _read(self) -> job_answers.LogChunk:
        watcher = self._watcher
        wait = watcher.patience(LOG_SLICE) if self._follow else 0.0
        request = requests.Logs(self._job, self._attempt, self._name, self._offset, wait=wait)
        piece = self._daemon.call(request, job_answers.LogChunk)
        if self._follow and watcher.watched:
            # how the files of a starting job arrive, until it prints something
            rows: Sequence[job_answers.JobView] = ()
            if piece.state in BEGINNING and not piece.data:
                rows = self._daemon.call(requests.Status([self._job]), job_answers.JobList).jobs
            watcher.show(rows)
        return piece

    def _note_silence(self, piece: job_answers.LogChunk, next_attempt: int) -> None:
        """Raises GpqError if there is nothing more to wait for."""
        is_known = bool(self._silence)
        self._silence = piece.silent
        if not piece.silent or next_attempt:
            return
        if self._is_last(piece):
            raise GpqError(piece.silent, "`gpq nodes` shows since when and why")
        if not is_known and not piece.ended:
            self._watcher.note(f"{piece.silent}, waiting for it")

    def _go_on(self, piece: job_answers.LogChunk, next_attempt: int) -> bool:
        """Move behind this piece. Was it the last?"""
        if next_attempt and not piece.data and (piece.ended or piece.silent or not self._follow):
            self._attempt, self._offset = next_attempt, 0
            self._name = "" if self._node.isdigit() else self._node  # it may have run elsewhere
            return False
        if not piece.data and self._is_last(piece):
            return True
        self._attempt, self._offset = piece.attempt, piece.offset
        if piece.ended and not piece.data:
            time.sleep(PAUSE)  # the daemon does not wait for the next attempt
        return False

    def _is_last(self, piece: job_answers.LogChunk) -> bool:
        """Is this the last piece to wait for, of this attempt and of later ones?"""
        if not self._follow:
            return True
        return piece.ended and (not self._every or piece.state in ENDED)


def newest(daemon: Lasting, job: str, watcher: Watcher | None = None) -> job_answers.JobView | None:
    """The row of the newest job that the selector names. If it names several, the watcher gets a
    note."""
    rows = daemon.call(requests.Status([job]), job_answers.JobList).jobs
    if len(rows) > 1 and job[0].isdigit():
        array = job.partition("_")[0]
        raise UsageError(
            f"`{job}` is an array of {len(rows)} jobs", f"name one job: {array}_0, or its id"
        )
    row = max(rows, key=lambda row: row.id, default=None)
    if row is not None and len(rows) > 1 and watcher is not None:
        watcher.note(f"{len(rows)} jobs match `{job}`: this is the newest, job {row.id}")
    return row


def _start_note(row: job_answers.JobView) -> str:
    never = "never started" if row.state in ENDED else "has not started"
    why = ", ".join(filter(None, [row.state, row.reason]))
    if row.reason.startswith(row.state):
        why = row.reason
    return f"job {row.id} {never} ({why})"


def _no_log(row: job_answers.JobView) -> GpqError:
    return GpqError(f"there is no log: {_start_note(row)}", f"see `gpq why {row.id}`")


def _with_rank(piece: job_answers.LogChunk, rank: int) -> str:
    if rank >= len(piece.nodes):
        raise NotFound(
            f"attempt {piece.attempt} has no server number {rank}",
            f"it ran on {', '.join(piece.nodes) or 'no server yet'}, and numbers start at 0",
        )
    return piece.nodes[rank]


def tail_start(read: Read, only: int, lines: int) -> tuple[int, int]:
    """(attempt, offset) where the last `lines` lines begin: in the attempt `only`, or with 0 in all
    attempts joined.

    An unfinished line counts. If the log of an attempt is unavailable, the lines begin there,
    because reading it says why.
    """
    attempts = [only] if only else read(0, 0, 1).attempts
    start = (only, 0)
    for attempt in reversed(attempts):
        offset, shortfall = _start_within(read, attempt, lines)
        start = attempt, offset
        if shortfall <= 0:
            break
        lines = shortfall
    return start


def _start_within(read: Read, attempt: int, lines: int) -> tuple[int, int]:
    """(offset where they begin in this attempt, how many lines are missing). If its log is
    unavailable, none is missing."""
    window = FIRST_WINDOW
    while True:
        piece = read(attempt, 0, window)
        if piece.silent:
            return 0, 0
        start = piece.offset - len(base64.b64decode(piece.data)) - piece.skipped
        starts, count, end = _line_starts(read, piece, lines)
        if count > lines or (start <= 0 and count == lines):
            return (starts[0] if lines else end), 0
        if start <= 0:
            return 0, lines - count
        window *= GROWTH


def _line_starts(read: Read, piece: LogChunk, most: int) -> tuple[deque[int], int, int]:
    """(where the last `most` lines begin, how many lines there are, where the log ends), from
    `piece` to the end of its attempt."""
    starts: deque[int] = deque(maxlen=most)
    count, opened = 0, False
    while piece.data:
        data = base64.b64decode(piece.data)
        place = piece.offset - len(data)
        begins = [] if opened else [0]
        begins += [match.end() for match in re.finditer(b"\n", data) if match.end() < len(data)]
        starts.extend(place + index for index in begins)
        count, opened = count + len(begins), not data.endswith(b"\n")
        piece = read(piece.attempt, piece.offset, 0)
    return starts, count, piece.offset
