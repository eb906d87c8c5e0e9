"""Events, ends and times as lines for a person."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from signal import Signals

from gpq.core.feasibility.checkpoints import size
from gpq.core.feasibility.device_status import place_of
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Reservation
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
        return f"killed by {_signal_name(end.signal)}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended_line(job: Job) -> str:
    """How a job ended, for a table cell, or ""."""
    match job.state:
        case JobState.FAILED:
            return exit_line(job.exit)
        case JobState.TIMEOUT:
            limit = job.spec.time_limit or 0.0
            if job.run_seconds and not 0 < limit < job.run_seconds + 1:  # edited since then
                return "reached the time limit that it had"
            return f"reached its time limit of {limit:.0f} s"
        case _:
            return ""


def event_view(event: facts.Event) -> EventView:
    job = getattr(event, "job", None)
    attempt = getattr(event, "attempt", None)
    return EventView(stamp(event.at), type(event).__name__, job, attempt, event_line(event))


def event_line(event: facts.Event) -> str:
    """One line, without the job's number."""
    for words in (_job_ask_line, _node_ask_line, _order_line, _start_line, _end_line, _node_line):
        line = words(event)
        if line:
            return line
    return type(event).__name__


def _job_ask_line(event: facts.Event) -> str:
    match event:
        case facts.Submitted():
            return f"submitted by {event.spec.user}"
        case facts.CancelAsked():
            return f"cancel requested{_by(event.by)}"
        case facts.HoldAsked():
            return f"hold requested{_by(event.by)}"
        case facts.ReleaseAsked():
            return f"release requested{_by(event.by)}"
        case facts.RequeueAsked():
            return f"requeue requested{_by(event.by)}{_why(event.said)}"
        case facts.Edited():
            return f"edited{_by(event.by)}: {event.said}"
        case _:
            return ""


def _node_ask_line(event: facts.Event) -> str:
    match event:
        case facts.NodeDrained():
            return f"server {event.node} was drained{_by(event.by)}{_why(event.reason)}"
        case facts.NodeUndrained():
            return f"server {event.node} was undrained{_by(event.by)}"
        case facts.NodeReserved():
            return _reservation_line(event.reservation)
        case facts.NodeUnreserved():
            return f"reservation {event.id} was removed{_by(event.by)}"
        case _:
            return ""


def _reservation_line(reservation: Reservation) -> str:
    beneficiary = reservation.user or "nobody"
    window = f"from {stamp(reservation.start)} until {stamp(reservation.end)}"
    return (
        f"{place_of(reservation, None)} reserved for {beneficiary} {window}"
        f"{_by(reservation.by)} (reservation {reservation.id})"
    )


def _by(user: str) -> str:
    return f" by {user}" if user else ""


def _order_line(event: facts.Event) -> str:
    match event:
        case facts.Launched():
            return f"attempt {event.attempt} on {gpus(event.placement)}{_why(event.why)}"
        case facts.StopSent():
            return f"attempt {event.attempt} was asked to stop ({event.reason}){_why(event.why)}"
        case facts.Retuned():
            return f"now {batch(event.order)}{_why(event.why)}"
        case facts.Held():
            return event.why or "held"
        case facts.Idled():
            return f"gets fewer GPUs: {event.why}"
        case facts.Released():
            return "released"
        case _:
            return ""


def _why(why: str) -> str:
    return f": {why}" if why else ""


def _stopped_line(event: facts.Stopped) -> str:
    if is_doubtful(event.exit):  # its note says what follows
        return f"attempt ended: {exit_line(event.exit)}"
    outcome = "failed" if event.failed else "ended"
    return f"attempt {outcome}, queued again: {exit_line(event.exit)}"


def _start_line(event: facts.Event) -> str:
    match event:
        case facts.Started():
            return f"runs on {event.node}"
        case facts.StartRefused():
            return f"{event.node} did not start it: {event.reason}"
        case facts.Staged():
            return (
                f"copied {size(event.bytes)} from {event.source} to {event.node} in"
                f" {event.seconds:.1f} s"
            )
        case _:
            return ""


def _end_line(event: facts.Event) -> str:
    match event:
        case facts.Exited():
            return f"attempt {event.attempt} ended on {event.node}: {exit_line(event.exit)}"
        case facts.Succeeded():
            return f"completed: {event.exit.note}" if event.exit.evidence else "completed"
        case facts.Failed():
            return f"failed: {exit_line(event.exit)}"
        case facts.Stopped():
            return _stopped_line(event)
        case facts.Cancelled():
            return "cancelled"
        case facts.TimeLimitReached():
            return "reached its time limit"
        case _:
            return ""


def _node_line(event: facts.Event) -> str:
    match event:
        case facts.LinkMeasured():
            return (
                f"{' and '.join(event.nodes)}: {event.bandwidth / 1e6:.0f} MB/s,"
                f" {event.latency * 1e3:.2f} ms"
            )
        case facts.NodeRemoved():
            return f"server {event.node} was removed"
        case _:
            return ""
