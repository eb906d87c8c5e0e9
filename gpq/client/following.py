"""What takes longer than one request and may outlive daemons: waiting for jobs, reading their logs,
cancelling them.

Prints nothing: the command line passes what draws and notes as a `Watcher`, gpq's Python interface
one that draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from gpq.client import tailing
from gpq.client.connection import Lasting
from gpq.errors import GpqError, NotFound, TimedOut, UsageError
from gpq.rpc import job_answers, requests

ENDED = ("completed", "failed", "cancelled", "timeout")
WAITING = ("pending", "held")
BEGINNING = ("pending", "starting")
SLICE = 30.0  # seconds that one request blocks for the end of jobs
LOG_SLICE = 20.0  # seconds that one request waits for more of a log
PAUSE = 0.5  # seconds between two looks for the next attempt


class Watcher(Protocol):
    """Whoever looks on while something goes on."""

    @property
    def watched(self) -> bool:
        """Is anything drawn at all?"""
        ...

    def patience(self, longest: float) -> float:
        """Seconds that the next look may take, at most `longest`."""
        ...

    def show(self, jobs: Iterable[job_answers.JobView]) -> None: ...

    def note(self, *lines: str) -> None: ...


def exit_status(job: job_answers.JobView) -> int:
    """The job's own exit status; 1 for one that ended otherwise than well and left none."""
    if job.exit_status is not None:
        return job.exit_status
    return 0 if job.state == "completed" else 1


def named(jobs: Iterable[int]) -> str:
    """`job 4` or `jobs 4, 5`."""
    numbers = list(jobs)
    return f"job{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"


def until_ended(
    jobs: list[str],
    seconds: float | None,
    watcher: Watcher,
    *,
    longest: Callable[[], float] = lambda: SLICE,
    listener: Callable[[job_answers.JobList], None] | None = None,
) -> job_answers.JobList:
    """The rows of the jobs once all have ended. Raises TimedOut after so many `seconds`, NotFound
    for no such job.

    `longest`: seconds that the next request may block; `listener` hears every answer.
    """
    until = None if seconds is None else time.monotonic() + seconds
    daemon = Lasting(watcher.note)
    while True:
        patience = watcher.patience(longest())
        if until is not None:
            patience = min(patience, until - time.monotonic())
        with daemon:  # one that waits for long leaves its place to others in between
            answer = daemon.call(requests.Wait(jobs, wait=max(patience, 0.0)), job_answers.JobList)
        watcher.show(answer.jobs)
        open_jobs = [job.id for job in answer.jobs if job.state not in ENDED]
        if not open_jobs:
            return answer
        if until is not None and time.monotonic() >= until:
            raise TimedOut(
                f"{named(open_jobs)} did not end within {seconds:g} s", "they run on: `gpq status`"
            )
        if listener is not None:
            listener(answer)
        # a selector such as `all` means what it meant at first
        jobs = [str(job.id) for job in answer.jobs]


def cancelled(
    daemon: Lasting,
    jobs: list[str],
    seconds: float,
    check: Callable[[list[job_answers.JobView]], None] = lambda rows: None,
) -> job_answers.CancelResult:
    """Cancel, and wait for the proof at most so many `seconds`. A second daemon, asked the same
    once more, finds ended what the first one has cancelled. `check` hears which jobs are meant
    before anything is done to them, and may raise."""
    before = daemon.call(requests.Status(jobs), job_answers.JobList).jobs
    check(before)
    names = [str(job.id) for job in before]  # `all` means what it meant at first
    answer = daemon.call(requests.Cancel(names, wait=seconds), job_answers.CancelResult)
    live_ids = {job.id for job in before if job.state not in ENDED}
    if not live_ids.intersection(answer.ended):
        return answer
    after = daemon.call(
        requests.Status([str(job) for job in answer.ended]), job_answers.JobList
    ).jobs
    cancelled_ids = [job.id for job in after if job.id in live_ids and job.state == "cancelled"]
    ended_ids = [job for job in answer.ended if job not in cancelled_ids]
    return msgspec.structs.replace(
        answer, cancelled=[*answer.cancelled, *cancelled_ids], ended=ended_ids
    )


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
    """The pieces in order, empty ones left out but for the first of each attempt, and the last one
    of an attempt whose server cannot be asked: then the next attempt follows. `lines`: from so many
    lines before the end on; None: all. Raises GpqError for a job without a log, and where no server
    of the last attempt answers."""
    row = newest(daemon, job, watcher)
    if row is not None:
        job = str(row.id)  # a selector such as `@` means what it meant at first
        if row.started_at is None and row.state in (*WAITING, *ENDED):
            if not follow or row.state in ENDED:
                raise _no_log(row)
            watcher.note(f"{_unstarted(row)}; `gpq why {job}` says more")
    any_output = False
    begin = (only, 0) if lines is None else tailing.begin(_reader(daemon, job, node), only, lines)
    for piece in _pieces(daemon, watcher, job, only, node, begin, follow=follow):
        any_output = any_output or bool(piece.data or piece.silent)
        yield piece
    row = None if any_output else newest(daemon, job)
    if row is not None and row.started_at is None:
        raise _no_log(row)


def _reader(daemon: Lasting, job: str, node: str) -> tailing.Read:
    def read(attempt: int, offset: int, tail: int) -> job_answers.LogChunk:
        name = "" if node.isdigit() else node
        if node.isdigit():
            first = daemon.call(requests.Logs(job, attempt, limit=1), job_answers.LogChunk)
            name = _ranked(first, int(node)) if first.attempt else ""
        return daemon.call(
            requests.Logs(job, attempt, name, offset, tail=tail), job_answers.LogChunk
        )

    return read


def _pieces(
    daemon: Lasting,
    watcher: Watcher,
    job: str,
    only: int,
    node: str,
    begin: tuple[int, int],
    *,
    follow: bool,
) -> Iterator[job_answers.LogChunk]:
    attempt, offset, silence = *begin, ""
    begun = 0  # the attempt whose first piece was handed on
    name = "" if node.isdigit() else node
    while True:
        request = requests.Logs(
            job, attempt, name, offset, wait=watcher.patience(LOG_SLICE) if follow else 0.0
        )
        piece = daemon.call(request, job_answers.LogChunk)
        if follow and watcher.watched:
            _show_transfer(daemon, watcher, job, piece)
        if node.isdigit() and not name:
            name = _ranked(piece, int(node))
            if name != piece.node:
                continue
        later = [] if only else [number for number in piece.attempts if number > piece.attempt]
        last = not follow or (piece.ended and (only or piece.state in ENDED))
        if piece.silent and not later:
            _note_silence(piece, watcher, last=bool(last), again=bool(silence))
        silence = piece.silent
        if piece.data or (later if piece.silent else piece.attempt != begun):
            begun = piece.attempt
            yield piece
        if piece.data:
            attempt, offset = piece.attempt, piece.offset
        elif later and (piece.ended or piece.silent or not follow):
            attempt, offset, name = later[0], 0, "" if node.isdigit() else node
        elif last:
            return
        else:
            attempt, offset = piece.attempt, piece.offset
            if piece.ended:
                time.sleep(PAUSE)  # until the next attempt: the daemon does not wait for it


def _note_silence(
    piece: job_answers.LogChunk, watcher: Watcher, *, last: bool, again: bool
) -> None:
    """Raises GpqError where nothing more is waited for."""
    if last:
        raise GpqError(piece.silent, "`gpq nodes` tells since when and why")
    if not again and not piece.ended:
        watcher.note(f"{piece.silent}; waiting for it")


def _show_transfer(
    daemon: Lasting, watcher: Watcher, job: str, piece: job_answers.LogChunk
) -> None:
    """Of the files of a job that starts and has said nothing yet."""
    starting = piece.state in BEGINNING and not piece.data
    rows = daemon.call(requests.Status([job]), job_answers.JobList).jobs if starting else ()
    watcher.show(rows)


def newest(daemon: Lasting, job: str, watcher: Watcher | None = None) -> job_answers.JobView | None:
    """The row of the newest job that is meant; the watcher hears where it is one of several."""
    rows = daemon.call(requests.Status([job]), job_answers.JobList).jobs
    if len(rows) > 1 and job[0].isdigit():
        array = job.partition("_")[0]
        raise UsageError(
            f"`{job}` is an array of {len(rows)} jobs", f"name one: {array}_0, or its id"
        )
    row = max(rows, key=lambda row: row.id, default=None)
    if row is not None and len(rows) > 1 and watcher is not None:
        watcher.note(f"`{job}` stands for {len(rows)} jobs; this is the newest, job {row.id}")
    return row


def _unstarted(row: job_answers.JobView) -> str:
    never = "never started" if row.state in ENDED else "has not started"
    why = f"{row.state}, {row.reason}" if row.reason else row.state
    if row.reason.startswith(row.state):
        why = row.reason
    return f"job {row.id} {never}: it is {why}"


def _no_log(row: job_answers.JobView) -> GpqError:
    return GpqError(f"{_unstarted(row)}; there is no log", f"`gpq why {row.id}` says more")


def _ranked(piece: job_answers.LogChunk, rank: int) -> str:
    if rank >= len(piece.nodes):
        raise NotFound(
            f"attempt {piece.attempt} has no node of rank {rank}",
            f"it ran on {', '.join(piece.nodes) or 'none yet'}: ranks begin at 0",
        )
    return piece.nodes[rank]
