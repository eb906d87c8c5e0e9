"""`gpq logs`: what a job printed, piece by piece from the daemon, all attempts joined."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.bringing import BEGINNING, Bar
from gpq.cli.frame import Job, Json, frame
from gpq.client.connection import Lasting
from gpq.errors import GpqError, NotFound, UsageError
from gpq.rpc import messages
from gpq.views.queue import ENDED
from gpq.views.terminal import Filter

app = frame()
WAIT = 20.0  # seconds that one request waits for more
PAUSE = 0.5  # seconds between two looks for the next attempt
WAITING = ("pending", "held")
FOLLOW = typer.Option("--follow", "-f", help="Go on until the job ends.")
ATTEMPT = typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.")
NODE = typer.Option("--node", metavar="NODE", help="Its name, or its rank in the job. [default: 0]")
RAW = typer.Option("--raw", help="On a terminal, too, pass on every byte.")


@app.command()
def logs(
    job: Job,
    follow: Annotated[bool, FOLLOW] = False,
    attempt: Annotated[int | None, ATTEMPT] = None,
    node: Annotated[str, NODE] = "",
    raw: Annotated[bool, RAW] = False,
    json: Json = False,
) -> None:
    """What a job printed, all attempts joined, with a line between them.

    On a terminal, escape codes other than colours are shown instead of obeyed; a pipe gets the bytes as they are.
    --json prints one object a line for each piece; `data` is base64.

    \b
    Example:
      gpq logs 42 -f
      gpq logs @ --attempt 2 > attempt-2.log
    """
    bar = Bar()
    with Lasting(bar.note) as daemon:
        pieces = read(daemon, bar, job, attempt or 0, node, follow=follow)
        if json:
            for piece in pieces:
                output.emit(piece)
        else:
            _print(pieces, filtered=sys.stdout.isatty() and not raw)


def read(daemon: Lasting, bar: Bar, job: str, only: int, node: str, *, follow: bool) -> Iterator[messages.LogChunk]:
    """The pieces in order, empty ones left out but for the first of each attempt, and the last one of an attempt whose
    server cannot be asked: then the next attempt follows. Raises GpqError for a job without a log, and where no server
    of the last attempt answers."""
    row = _row(daemon, job)
    if row is not None:
        job = str(row.id)  # a selector such as `@` means what it meant at first
        if row.started_at is None and row.state in (*WAITING, *ENDED):
            if not follow or row.state in ENDED:
                raise _no_log(row)
            bar.note(f"{_unstarted(row)}; `gpq why {job}` says more")
    seen = False
    for piece in _pieces(daemon, bar, job, only, node, follow=follow):
        seen = seen or bool(piece.data or piece.silent)
        yield piece
    row = None if seen else _row(daemon, job)
    if row is not None and row.started_at is None:
        raise _no_log(row)


def _pieces(daemon: Lasting, bar: Bar, job: str, only: int, node: str, *, follow: bool) -> Iterator[messages.LogChunk]:
    attempt, offset, told = only, 0, ""
    begun = 0  # the attempt whose first piece was handed on
    name = "" if node.isdigit() else node
    while True:
        request = messages.Logs(job, attempt, name, offset, wait=bar.patience(WAIT) if follow else 0.0)
        piece = daemon.call(request, messages.LogChunk)
        if follow and bar.watched:
            starting = piece.state in BEGINNING and not piece.data
            bar.show(daemon.call(messages.Status([job]), messages.JobList).jobs if starting else ())
        if node.isdigit() and not name:
            name = _ranked(piece, int(node))
            if name != piece.node:
                continue
        later = [] if only else [number for number in piece.attempts if number > piece.attempt]
        last = not follow or (piece.ended and (only or piece.state in ENDED))
        if piece.silent and not later:
            if last:
                raise GpqError(piece.silent, "`gpq nodes` tells since when and why")
            if not told and not piece.ended:
                bar.note(f"{piece.silent}; waiting for it")
        told = piece.silent
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


def _row(daemon: Lasting, job: str) -> messages.JobView | None:
    """Of the newest job that is meant."""
    named = daemon.call(messages.Status([job]), messages.JobList).jobs
    if len(named) > 1 and job[0].isdigit():
        array = job.partition("_")[0]
        raise UsageError(f"`{job}` is an array of {len(named)} jobs", f"name one: {array}_0, or its id")
    return max(named, key=lambda row: row.id, default=None)


def _unstarted(row: messages.JobView) -> str:
    never = "never started" if row.state in ENDED else "has not started"
    return f"job {row.id} {never}: it is {row.state}" + (f", {row.reason}" if row.reason else "")


def _no_log(row: messages.JobView) -> GpqError:
    return GpqError(f"{_unstarted(row)}; there is no log", f"`gpq why {row.id}` says more")


def _ranked(piece: messages.LogChunk, rank: int) -> str:
    if rank >= len(piece.nodes):
        raise NotFound(
            f"attempt {piece.attempt} has no node of rank {rank}",
            f"it ran on {', '.join(piece.nodes) or 'none yet'}: ranks begin at 0",
        )
    return piece.nodes[rank]


def _print(pieces: Iterator[messages.LogChunk], *, filtered: bool) -> None:
    sink, screen, seen, line_open = sys.stdout.buffer, Filter(), 0, False
    for piece in pieces:
        if piece.silent:
            rest = "its log" if piece.attempt != seen else "the rest of its log"
            told = f"--- attempt {piece.attempt} on {piece.node}: {rest} is not to be had now: {piece.silent} ---\n"
            sink.write((b"\n" if line_open else b"") + told.encode())
            sink.flush()
            seen, line_open = piece.attempt, False
            continue
        if piece.attempt != seen:
            if len(piece.attempts) > 1 or seen:
                sink.write(b"\n" if line_open else b"")
                sink.write(f"--- attempt {piece.attempt} on {piece.node or 'no node yet'} ---\n".encode())
            seen, line_open = piece.attempt, False
        data = base64.b64decode(piece.data)
        if piece.skipped:
            told = f"--- {piece.skipped / (1 << 20):.0f} MiB left out: the log is over its limit (log_limit) ---\n"
            sink.write((b"\n" if line_open else b"") + told.encode())
        sink.write(screen.feed(data).encode(sys.stdout.encoding, "backslashreplace") if filtered else data)
        sink.flush()
        line_open = not data.endswith(b"\n") if data else line_open
