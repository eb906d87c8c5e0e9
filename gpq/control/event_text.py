"""Events, ends and times as lines for a person."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from signal import Signals

from gpq.core.feasibility.checkpoints import size
from gpq.core.feasibility.device_status import place_of
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.units import Seconds
from gpq.core.state.attempt_end import is_doubtful
from gpq.rpc.job_answers import EventView

LATEST = 253_402_300_799.0  # seconds since 1970: the end of the year 9999


def stamp(seconds: Seconds) -> str:
    """UTC, ISO 8601, to the millisecond. Any number has one, the nearest."""
    return (
        datetime.fromtimestamp(min(max(0.0, seconds), LATEST), timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def maybe_stamp(seconds: Seconds | None) -> str | None:
    return None if seconds is None else stamp(seconds)


def command_line(argv: Sequence[str], most: int) -> str:
    """As a shell reads it, in at most `most` characters."""
    line = shlex.join(argv)
    return line if len(line) <= most else line[: most - 3] + "..."


def gpus(placement: Placement) -> str:
    return f"{placement.replicas} GPU{'s' if placement.replicas != 1 else ''} ({placement})"


def batch(order: BatchOrder) -> str:
    if not order.atomic_batch:
        return "the library's own batch"
    return f"micro-batch {order.atomic_batch}, {order.accum_steps} accumulation steps"


def exit_line(end: Exit | None) -> str:
    """`exit 1`, `killed by SIGKILL`, with the server's note."""
    if end is None:
        return ""
    cause = _cause(end)
    if end.oom and cause:
        cause = f"{cause}, out of memory"
    if end.note.startswith((f"{cause} ", f"{cause},")):  # it begins with the same words
        return end.note
    if end.note and cause:
        return f"{cause}: {end.note}"
    return cause or end.note


def _cause(end: Exit) -> str:
    """ "" if the note says it alone."""
    if end.fenced:
        return ""
    if end.lost:
        return "no exit record: its server was restarted, or its processes vanished"
    if end.code is not None:
        return f"exit {end.code}"
    if end.signal:
        try:
            return f"killed by {Signals(end.signal).name}"
        except ValueError:
            return f"killed by signal {end.signal}"
    return ""


def ended_line(job: Job) -> str:
    """How a job ended, for a table cell, or ""."""
    if job.state is JobState.FAILED:
        return exit_line(job.exit)
    if job.state is not JobState.TIMEOUT:
        return ""
    limit = job.spec.time_limit or 0.0
    if job.run_seconds and not 0 < limit < job.run_seconds + 1:  # edited since then
        return "reached the time limit that it had"
    return f"reached its time limit of {limit:.0f} s"


def event_view(event: facts.Event) -> EventView:
    job = getattr(event, "job", None)
    attempt = getattr(event, "attempt", None)
    return EventView(stamp(event.at), type(event).__name__, job, attempt, event_line(event))


# by kind of event. {by}, {why}, {said} and {reason} bring their own sign, if there is any
LINES: Mapping[type[facts.Event], str] = {
    facts.Submitted: "submitted by {event.spec.user}",
    facts.CancelAsked: "cancel requested{by}",
    facts.HoldAsked: "hold requested{by}",
    facts.ReleaseAsked: "release requested{by}",
    facts.RequeueAsked: "requeue requested{by}{said}",
    facts.Edited: "edited{by}: {event.said}",
    facts.NodeDrained: "server {event.node} was drained{by}{reason}",
    facts.NodeUndrained: "server {event.node} was undrained{by}",
    facts.NodeUnreserved: "reservation {event.id} was removed{by}",
    facts.StopSent: "attempt {event.attempt} was asked to stop ({event.reason}){why}",
    facts.Idled: "gets fewer GPUs: {event.why}",
    facts.Released: "released",
    facts.Started: "runs on {event.node}",
    facts.StartRefused: "{event.node} did not start it: {event.reason}",
    facts.Exited: "attempt {event.attempt} ended on {event.node}: {exit}",
    facts.Succeeded: "completed",
    facts.Failed: "failed: {exit}",
    facts.Cancelled: "cancelled",
    facts.TimeLimitReached: "reached its time limit",
    facts.NodeRemoved: "server {event.node} was removed",
}


def event_line(event: facts.Event) -> str:
    """One line, without the job's number."""
    by = _after(" by ", getattr(event, "by", ""))
    why = _after(": ", getattr(event, "why", ""))
    match event:
        case facts.NodeReserved(reservation=reservation):
            window = f"from {stamp(reservation.start)} until {stamp(reservation.end)}"
            return (
                f"{place_of(reservation, None)} reserved for {reservation.user or 'nobody'}"
                f" {window}{_after(' by ', reservation.by)} (reservation {reservation.id})"
            )
        case facts.Launched():
            return f"attempt {event.attempt} on {gpus(event.placement)}{why}"
        case facts.Retuned():
            return f"now {batch(event.order)}{why}"
        case facts.Held():
            return event.why or "held"
        case facts.Staged():
            return (
                f"copied {size(event.bytes)} from {event.source} to {event.node} in"
                f" {event.seconds:.1f} s"
            )
        case facts.Succeeded() if event.exit.evidence:
            return f"completed: {event.exit.note}"
        case facts.Stopped() if is_doubtful(event.exit):  # its note says what follows
            return f"attempt ended: {exit_line(event.exit)}"
        case facts.Stopped():
            outcome = "failed" if event.failed else "ended"
            return f"attempt {outcome}, queued again: {exit_line(event.exit)}"
        case facts.LinkMeasured():
            speed = f"{event.bandwidth / 1e6:.0f} MB/s, {event.latency * 1e3:.2f} ms"
            return f"{' and '.join(event.nodes)}: {speed}"
    return LINES.get(type(event), type(event).__name__).format(
        event=event,
        by=by,
        why=why,
        said=_after(": ", getattr(event, "said", "")),
        reason=_after(": ", getattr(event, "reason", "")),
        exit=exit_line(getattr(event, "exit", None)),
    )


def _after(sign: str, text: str) -> str:
    """The text after its sign, or nothing."""
    return f"{sign}{text}" if text else ""
