"""`gpq logs`: prints what a job printed over all attempts, piece by piece from the daemon."""

from __future__ import annotations

import base64
import contextlib
import sys
from typing import Annotated

import typer

from gpq.cli import output
from gpq.cli.jobs.wait import Bar
from gpq.cli.typer_app import Job, Json, frame
from gpq.client import job_logs
from gpq.client.connection import Lasting
from gpq.rpc import job_answers
from gpq.views.plain import safe
from gpq.views.terminal import Filter, LastStates

app = frame()
FOLLOW = typer.Option("--follow", "-f", help="Keep printing until the job ends.")
LINES = typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines.")
ATTEMPT = typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.")
NODE = typer.Option(
    "--node", metavar="NODE", help="Name of a server, or its number in the job. [default: 0]"
)
RAW = typer.Option("--raw", help="Print every byte as it is, also on a terminal.")


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
    """Show what a job printed: all attempts, with a line between them.

    On a terminal, gpq prints escape codes other than colours as text. A pipe gets the bytes as they
    are. On a terminal and with -n, a progress bar is one line in its last state. --json prints one
    object per line, and `data` in it is base64.

    \b
    Example:
      gpq logs 42 -f
      gpq logs 42 -n 20
      gpq logs @ --attempt 2 > attempt-2.log
    """
    bar = Bar()
    goes_on = output.on_interrupt("the job stays queued or keeps running: `gpq cancel` stops it")
    with Lasting(bar.note) as daemon, goes_on if follow else contextlib.nullcontext():
        pieces = job_logs.log(daemon, bar, job, attempt or 0, node, follow=follow, lines=lines)
        if json:
            for piece in pieces:
                output.emit(piece)
        else:
            filtered = sys.stdout.isatty() and not raw
            states = filtered or (lines is not None and not raw)
            transcript = Transcript(filtered=filtered, states=states, live=follow)
            for piece in pieces:
                transcript.write(piece)
            transcript.close()


class Transcript:
    """Writes the pieces of a log to stdout, with a line where an attempt begins or something is
    missing. `states`: only the last state of each line. `live`: unfinished lines at once."""

    def __init__(self, *, filtered: bool, states: bool = False, live: bool = False) -> None:
        self._sink = sys.stdout.buffer
        self._states = LastStates() if states else None
        self._live = live
        self._filter = Filter() if filtered else None
        self._attempt = 0  # the last attempt that was announced
        self._line_open = False

    def write(self, piece: job_answers.LogChunk) -> None:
        is_new = piece.attempt != self._attempt
        if piece.silent:
            missing_part = "its log" if is_new else "the rest of its log"
            self._write_rule(
                f"attempt {piece.attempt} on {piece.node}: {missing_part} is not available now:"
                f" {piece.silent}"
            )
        elif is_new and (len(piece.attempts) > 1 or self._attempt):
            self._write_rule(f"attempt {piece.attempt} on {piece.node or 'no server yet'}")
        if is_new or piece.silent:
            self._attempt, self._line_open = piece.attempt, False
        if piece.skipped:
            self._write_rule(
                f"{piece.skipped / (1 << 20):.0f} MiB left out: the log exceeded its limit"
                " (log_limit)"
            )
        data = base64.b64decode(piece.data)
        if data:
            self._sink.write(self._fit(self._states.feed(data) if self._states else data))
            self._line_open = not data.endswith(b"\n")
        if self._live:
            self._write_rest()
        self._sink.flush()

    def close(self) -> None:
        self._write_rest()
        self._sink.flush()

    def _write_rest(self) -> None:
        if self._states:
            self._sink.write(self._fit(self._states.rest()))

    def _fit(self, data: bytes) -> bytes:
        """The bytes to write to stdout."""
        if self._filter is None:
            return data
        return self._filter.feed(data).encode(sys.stdout.encoding, "backslashreplace")

    def _write_rule(self, text: str) -> None:
        """Write a separating line."""
        self._write_rest()
        if self._line_open:
            self._sink.write(b"\n")
        self._sink.write(f"--- {safe(text)} ---\n".encode())
