"""Job states: the only place that knows them. A table, `advance`, and how the end of an attempt is
read (`conclude`).

This file does not know why a round wants anything; it says what follows from a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from gpq.core.model.events import (
    Cancelled,
    Event,
    Failed,
    Held,
    Launched,
    Released,
    Started,
    Stopped,
    StopSent,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import Job, JobState, Level, StopReason
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Config
from gpq.core.model.units import Seconds

MOST_DOUBLINGS = 8  # of the wait after a failure
STATEMENTS = "it can say so with --done-file PATH, job.done() or a checkpoint at its last step"

_ENDS: Mapping[type, JobState] = {
    Succeeded: JobState.COMPLETED,
    Failed: JobState.FAILED,
    Cancelled: JobState.CANCELLED,
    TimeLimitReached: JobState.TIMEOUT,
}
_ATTEMPT_OVER: Mapping[type, JobState] = {Stopped: JobState.PENDING, **_ENDS}

TRANSITIONS: Mapping[JobState, Mapping[type, JobState]] = MappingProxyType(
    {
        JobState.PENDING: {
            Launched: JobState.STARTING,
            Held: JobState.HELD,
            Cancelled: JobState.CANCELLED,
        },
        JobState.HELD: {Released: JobState.PENDING, Cancelled: JobState.CANCELLED},
        JobState.STARTING: {
            Started: JobState.RUNNING,
            StopSent: JobState.STOPPING,
            **_ATTEMPT_OVER,
        },
        JobState.RUNNING: {StopSent: JobState.STOPPING, **_ATTEMPT_OVER},
        # A second StopSent is a harder one: a cancel overtakes a checkpoint.
        JobState.STOPPING: {StopSent: JobState.STOPPING, **_ATTEMPT_OVER},
        JobState.COMPLETED: {},
        JobState.FAILED: {},
        JobState.CANCELLED: {},
        JobState.TIMEOUT: {},
    }
)


class InvalidTransition(Exception):
    """An event that has no cell in the table: a bug in gpq, never a user's mistake. Nothing was
    changed."""


def advance(state: JobState, event: Event) -> JobState:
    """The state after `event`. Raises InvalidTransition, naming state and event, when the table has
    no such cell."""
    try:
        return TRANSITIONS[state][type(event)]
    except KeyError:
        raise InvalidTransition(
            f"{type(event).__name__} cannot happen to a job that is {state}"
        ) from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for gpq/README.md."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state} --> {after}: {event.__name__}" for event, after in row.items()]
        lines += [f"    {state} --> [*]"] if not row else []
    return "\n".join(lines)


# Asked of a job that keeps no checkpoints, they lead back to the queue: its user allowed for that.
_FROM_ITS_START = (StopReason.REQUEUE, StopReason.PREEMPT, StopReason.RESIZE)


def conclude(job: Job, now: Seconds, config: Config) -> Event:
    """What it means that no process of the job's attempt is left anywhere: `job.exits` has all its
    nodes."""
    end = _blamed(joint_exit([exit_ for _, exit_ in job.exits], _lead(job)), job)
    end = _told(replace(end, ended_at=_ended_at(job, now)), job)
    finished = _is_well(end) and not is_doubtful(end)
    if job.stop is StopReason.TIME and not end.asked and end.ended_at < (job.stop_sent_at or 0.0):
        # its end was before its time was over, and we did not hear of it
        job = replace(job, stop=None)
    if job.stop is StopReason.CANCEL:
        return (
            Succeeded(now, job.id, end)
            if finished and not end.asked
            else Cancelled(now, job.id, end)
        )
    if job.stop is StopReason.TIME:
        return Succeeded(now, job.id, end) if finished else TimeLimitReached(now, job.id, end)
    if finished:
        return Succeeded(now, job.id, end)
    ran = end.ended_at - job.launched_at if job.launched_at is not None else 0.0
    quick = ran < config.quick_failure_seconds
    again_at = now + config.retry_seconds * 2.0 ** min(job.quick_failures, MOST_DOUBLINGS)
    if end.unlaunched and job.stop is None:
        # Nothing of the user's has run. Another attempt has another port; what keeps servers apart
        # may take a person.
        return Stopped(now, job.id, end, quick=end.unlaunched != "port", not_before=again_at)
    if end.excused and job.stop is None:
        return Stopped(
            now, job.id, replace(end, note=end.excused)
        )  # each time it asks for less, so this comes to an end
    if (
        end.stopped
        or is_doubtful(end)
        or is_unproven(end, job)
        or (job.stop in _FROM_ITS_START and not job.resumable)
    ):
        if job.stop is None and quick:
            # nobody asked: one that always does this would start without end
            return Stopped(now, job.id, end, quick=True, not_before=again_at)
        return Stopped(now, job.id, end)
    whole = job.placement is not None and len(job.started_nodes) == len(job.placement.parts)
    if end.fenced or (end.lost and (not whole or _survives(job))):
        # The node's fault, and not counted as a failure; but a job that takes its node down each
        # time is held in the end.
        blamed = end.lost and whole and job.stop is None
        wait = again_at if job.stop is None else 0.0
        crashed = blamed and ran < config.crash_seconds
        return Stopped(now, job.id, end, quick=quick and blamed, crashed=crashed, not_before=wait)
    if job.stop is not None or job.failures < job.spec.retries:
        return Stopped(now, job.id, end, failed=True, quick=quick, not_before=again_at)
    return Failed(now, job.id, end)


def _ended_at(job: Job, now: Seconds) -> Seconds:
    """When the last of its parts ended, which may be long before it was told. `now` for one that
    does not say."""
    last = max(end.ended_at or now for _, end in job.exits)
    return min(max(last, job.started_at or job.launched_at or last), now)


def _survives(job: Job) -> bool:
    """Does the job go on after an end that nobody saw, a reboot say? What keeps checkpoints does;
    what would begin anew only where its user allowed for that."""
    return job.resumable or job.spec.requeue_on_lost > 0 or job.failures < job.spec.retries


def joint_exit(exits: list[Exit], lead: Exit | None = None) -> Exit:
    """One outcome of an attempt that ran on several nodes: a lost part, one that its lease ended,
    one that never began, one that gpq is to blame for, else the first failure (rather one that is
    not due to another), else the one that proves the checkpoint (the node of rank 0 holds it), else
    `lead`, that of rank 0's node."""
    for criterion in (
        lambda e: e.lost,
        lambda e: e.fenced,
        lambda e: e.unlaunched,
        lambda e: e.excused,
        lambda e: e.code not in (0, None) and not e.stopped and not e.victim and not e.asked,
        lambda e: e.code not in (0, None) and not e.stopped,
        lambda e: e.stopped,
        lambda e: e.code is None,
    ):
        deciding_exit = next((exit_ for exit_ in exits if criterion(exit_)), None)
        if deciding_exit is not None:
            return deciding_exit
    return lead or exits[0]


def _lead(job: Job) -> Exit | None:
    """How the attempt ended on the node of rank 0."""
    first = job.placement.parts[0][0] if job.placement is not None and job.placement.parts else None
    return next((exit_ for node, exit_ in job.exits if node == first), None)


def _is_well(end: Exit) -> bool:
    return end.code == 0 and not end.stopped and not end.lost and not end.fenced


def is_doubtful(end: Exit) -> bool:
    """Did it end with 0 after it was asked to stop, and nothing says that it had come to its
    end? To exit with 0 at a TERM is manners, not success: who saves on a signal often does so
    half way."""
    return _is_well(end) and bool(end.asked) and not end.finished


def is_unproven(end: Exit, job: Job) -> bool:
    """Did a job that saves on a signal end by another code, or by a signal, after it was sent its
    own? A launcher's code says nothing of what its program saved, so this is no failure, and no
    proof of a checkpoint either."""
    got_signal = job.spec.level is Level.SIGNAL and end.asked == "signal"
    signalled_stop = got_signal and job.stop in (*_FROM_ITS_START, StopReason.HOLD)
    return (
        signalled_stop
        and not end.stopped
        and not end.lost
        and not end.fenced
        and not end.oom
        and end.code != 0
    )


def _told(end: Exit, job: Job) -> Exit:
    """With what is made of an exit with 0 after a stop order in its note."""
    remark = ""
    if is_doubtful(end) and job.stop is not StopReason.CANCEL:
        consequence = (
            "its time limit was over" if job.stop is StopReason.TIME else "it is queued again"
        )
        remark = "exit 0 after a stop order, and nothing says that it had finished"
        if job.spec.done_file:
            remark = (
                f"{remark} (gpq saw nothing written to its done file {job.spec.done_file}),"
                f" so {consequence}"
            )
        else:
            remark = f"{remark}, so {consequence}; {STATEMENTS}"
    elif is_unproven(end, job):
        remark = "stopped without a proven checkpoint: neither exit code 75 or 143, nor a done file"
    elif _is_well(end) and end.asked and end.finished:
        remark = f"it had finished when it was asked to stop: {end.evidence}"
    return replace(end, note="; ".join(part for part in (remark, end.note) if part))


def _blamed(end: Exit, job: Job) -> Exit:
    """With what failed first in its note, and on which server where there are several: what others
    say of a peer that is gone, or of the stop that followed, explains nothing."""
    if (
        end.code == 0
        or end.stopped
        or end.lost
        or end.fenced
        or end.unlaunched
        or end.excused
        or end.oom
    ):
        return end
    culprits = [(node, exit_) for node, exit_ in job.exits if exit_.cause and not exit_.victim]
    if not culprits:
        return end
    node, first = culprits[0]
    cause = f"{first.cause} (server {node})" if len(job.exits) > 1 else first.cause
    return replace(end, note="; ".join(part for part in (cause, end.note) if part))


def preempted(job: Job, code: int | None) -> bool:
    """Did a job that checkpoints on a signal say by its exit code that it stopped half way (75,
    143)?"""
    return job.spec.level is Level.SIGNAL and code in (75, 143)
