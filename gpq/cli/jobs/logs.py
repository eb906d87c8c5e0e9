"""`gpq logs`: what a job printed, piece by piece from the daemon, all attempts joined."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from gpq.cli.shared import output
from gpq.cli.shared.transfer_bar import Bar
from gpq.cli.shared.typer_app import Job, Json, frame
from gpq.client import job_logs
from gpq.client.connection import Lasting
from gpq.rpc import job_answers
from gpq.views.terminal import Filter

app = frame()
FOLLOW = typer.Option("--follow", "-f", help="Go on until the job ends.")
LINES = typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines.")
ATTEMPT = typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.")
NODE = typer.Option("--node", metavar="NODE", help="Its name, or its rank in the job. [default: 0]")
RAW = typer.Option("--raw", help="On a terminal, too, pass on every byte.")


@app.command()
def logs(
    job: Job,
    follow: Annotated[bool, FOLLOW] = False,
    lines: Annotated[int | None, LINES] = None,
    attempt: Annotated[int | None, ATTEMPT] = None,
    node: Annotated[str, NODE] = "",
    raw: Annotated[bool, RAW] = False,
    json: Json = False,
) -> None:
    """What a job printed, all attempts joined, with a line between them.

    On a terminal, escape codes other than colours are shown instead of obeyed; a pipe gets the
    bytes as they are. --json prints one object a line for each piece; `data` is base64.

    \b
    Example:
      gpq logs 42 -f
      gpq logs 42 -n 20
      gpq logs @ --attempt 2 > attempt-2.log
    """
    bar = Bar()
    goes_on = output.on_interrupt("the job stays queued or runs on: `gpq cancel` stops it")
    with Lasting(bar.note) as daemon, goes_on if follow else contextlib.nullcontext():
        pieces = job_logs.log(daemon, bar, job, attempt or 0, node, follow=follow, lines=lines)
        if json:
            for piece in pieces:
                output.emit(piece)
        else:
            _print(pieces, filtered=sys.stdout.isatty() and not raw)


def _print(pieces: Iterator[job_answers.LogChunk], *, filtered: bool) -> None:
    sink, screen, attempt, line_open = sys.stdout.buffer, Filter(), 0, False
    for piece in pieces:
        if piece.silent:
            missing_part = "its log" if piece.attempt != attempt else "the rest of its log"
            notice = (
                f"--- attempt {piece.attempt} on {piece.node}: {missing_part} is not to be had now:"
                f" {piece.silent} ---\n"
            )
            sink.write((b"\n" if line_open else b"") + notice.encode())
            sink.flush()
            attempt, line_open = piece.attempt, False
            continue
        if piece.attempt != attempt:
            if len(piece.attempts) > 1 or attempt:
                sink.write(b"\n" if line_open else b"")
                sink.write(
                    f"--- attempt {piece.attempt} on {piece.node or 'no node yet'} ---\n".encode()
                )
            attempt, line_open = piece.attempt, False
        data = base64.b64decode(piece.data)
        if piece.skipped:
            notice = (
                f"--- {piece.skipped / (1 << 20):.0f} MiB left out: the log is over its limit"
                " (log_limit) ---\n"
            )
            sink.write((b"\n" if line_open else b"") + notice.encode())
        sink.write(
            screen.feed(data).encode(sys.stdout.encoding, "backslashreplace") if filtered else data
        )
        sink.flush()
        line_open = not data.endswith(b"\n") if data else line_open
