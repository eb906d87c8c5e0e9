"""How to read the end of an attempt (`conclude`): did the job finish, does it resume later, or has
it failed?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpq.core.model.events import (
    Cancelled,
    End,
    Failed,
    Stopped,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import Job, Level, StopReason
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Config
from gpq.core.model.units import Seconds

MOST_DOUBLINGS = 8  # of the wait after a failure
LONGEST_WAIT: Seconds = 60.0  # after an end that is not the job's fault, because it may be over now
STATEMENTS = "It can prove that with --done-file PATH, job.done() or a checkpoint at its last step"

# For these reasons a job without checkpoints goes back to the queue: its user allowed that.
_FROM_ITS_START = (StopReason.REQUEUE, StopReason.PREEMPT, StopReason.RESIZE)


def conclude(job: Job, now: Seconds, config: Config) -> End:
    """What it means that no process of the job's attempt is left anywhere: `job.exits` has all its
    servers."""
    exits = dict(job.exits)
    end = _with_cause(joint_exit([*exits.values()], exits.get(job.nodes[0])), job)
    # When the last of its parts ended, which may be long before the report. `now` for a part that
    # does not say.
    last = max(exit_.ended_at or now for exit_ in exits.values())
    ended_at = min(max(last, job.started_at or job.launched_at or last), now)
    end = _with_meaning(replace(end, ended_at=ended_at), job)
    finished = _is_well(end) and not is_doubtful(end)
    if job.stop is StopReason.TIME and not end.asked and ended_at < (job.stop_sent_at or 0.0):
        job = replace(job, stop=None)  # it ended before its time was over, unheard
    if job.stop is StopReason.CANCEL and (end.asked or not finished):
        return Cancelled(now, job.id, end)
    if finished:
        return Succeeded(now, job.id, end)
    if job.stop is StopReason.TIME:
        return TimeLimitReached(now, job.id, end)
    ran = ended_at - job.launched_at if job.launched_at is not None else 0.0
    event = _end_unfinished(job, end, now, ran, config)
    if isinstance(event, Stopped) and job.stop is None:
        return replace(event, soon=ran < config.quick_failure_seconds)
    return event


def _end_unfinished(job: Job, end: Exit, now: Seconds, ran: Seconds, config: Config) -> End:
    """For an attempt that ended before the job was done: does gpq queue it again, and from when, or
    has it failed?"""
    stopped, quick = Stopped(now, job.id, end), ran < config.quick_failure_seconds
    # Longer with each attempt in a row that ended soon, whoever's fault that was: no job starts
    # without end.
    doublings = min(max(job.quick_failures, job.soon_ends), MOST_DOUBLINGS)
    again_at = now + config.retry_seconds * 2.0**doublings
    soon = min(again_at, now + LONGEST_WAIT)
    if job.stop is None and end.unlaunched:
        # No code of the user has run. Another attempt gets another port, but a separated server may
        # need a person.
        if end.unlaunched == "port":
            return replace(stopped, not_before=soon)
        return replace(stopped, quick=True, not_before=again_at)
    if job.stop is None and end.excused:
        # It asks for less each time, so the next try may succeed at once.
        wait_until = soon if job.soon_ends else 0.0
        return replace(stopped, exit=replace(end, note=end.excused), not_before=wait_until)
    # so that it can resume, or start from the beginning as its user allowed
    from_start = job.stop in _FROM_ITS_START and not job.resumable
    if end.stopped or is_doubtful(end) or is_unproven(end, job) or from_start:
        if job.stop is None and quick:
            # nobody asked: a job that always does this would start without end
            return replace(stopped, quick=True, not_before=again_at)
        return stopped
    ran_everywhere = len(job.started_nodes) == len(job.parts)
    may_retry = job.failures < job.spec.retries
    # An end that nobody saw, such as a reboot. A job that would start from the beginning continues
    # only if its user allowed that.
    survives = job.resumable or job.spec.requeue_on_lost > 0 or may_retry
    if end.fenced or (end.lost and (survives or not ran_everywhere)):
        # The server's fault, so it does not count as a failure. But gpq finally holds a job that
        # takes its server down each time.
        if job.stop is not None:
            return stopped
        if not end.lost or not ran_everywhere:
            return replace(stopped, not_before=soon)
        crashed = ran < config.crash_seconds
        return replace(stopped, quick=quick, crashed=crashed, not_before=again_at)
    if job.stop is not None or may_retry:
        return replace(stopped, failed=True, quick=quick, not_before=again_at)
    return Failed(now, job.id, end)


def joint_exit(exits: list[Exit], lead: Exit | None = None) -> Exit:
    """One outcome of an attempt that ran on several servers, by `_PRECEDENCE`. Otherwise `lead`,
    that of rank 0's server."""
    for criterion in _PRECEDENCE:
        for exit_ in exits:
            if criterion(exit_):
                return exit_
    return lead or exits[0]


def _is_failure(end: Exit) -> bool:
    return end.code not in (0, None) and not end.stopped


# First a lost part, then one that its lease ended, one that never started, and one that gpq is to
# blame for. Then the first failure, preferably one that no other part caused. Then the one that
# proves the checkpoint, which is on the server of rank 0.
_PRECEDENCE: tuple[Callable[[Exit], object], ...] = (
    lambda end: end.lost,
    lambda end: end.fenced,
    lambda end: end.unlaunched,
    lambda end: end.excused,
    lambda end: _is_failure(end) and not end.victim and not end.asked,
    _is_failure,
    lambda end: end.stopped,
    lambda end: end.code is None,
)


def _is_well(end: Exit) -> bool:
    return end.code == 0 and not end.stopped and not end.lost and not end.fenced


def is_doubtful(end: Exit) -> bool:
    """Did it end with 0 after it was asked to stop, without proof that it had finished? Exit code 0
    after TERM is good manners, not success: a program that saves on a signal often does this half
    way."""
    return _is_well(end) and bool(end.asked) and not end.finished


def is_unproven(end: Exit, job: Job) -> bool:
    """Did a job that saves on a signal end with another code or by a signal after gpq sent its own?
    A launcher's code says nothing about what its program saved, so this is not a failure and not
    proof of a checkpoint."""
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


def _with_meaning(end: Exit, job: Job) -> Exit:
    """With the meaning of an exit code 0 after a stop order in its note."""
    remark = ""
    if is_doubtful(end) and job.stop is not StopReason.CANCEL:
        remark = _doubt(job)
    elif is_unproven(end, job):
        remark = "stopped without proof of a checkpoint: no exit code 75 or 143, and no done file"
    elif _is_well(end) and end.asked and end.finished:
        remark = f"it had finished when gpq asked it to stop: {end.evidence}"
    return _with_remark(end, remark)


def _doubt(job: Job) -> str:
    """Why an exit code 0 is not success, and what follows."""
    remark = "exit 0 after a stop order, without proof that it had finished"
    consequence = "gpq queues it again"
    if job.stop is StopReason.TIME:
        consequence = "it ends with its time limit"
    if job.spec.done_file:
        return (
            f"{remark} (gpq saw nothing written to its done file {job.spec.done_file}),"
            f" so {consequence}"
        )
    return f"{remark}, so {consequence}. {STATEMENTS}"


def _with_remark(end: Exit, remark: str) -> Exit:
    """With a remark before its note."""
    return replace(end, note="; ".join(filter(None, (remark, end.note))))


def _with_cause(end: Exit, job: Job) -> Exit:
    """With the first failure in its note, and its server if there are several. What other parts say
    about a missing peer, or about the stop that followed, explains nothing."""
    is_known = end.lost or end.fenced or end.unlaunched or end.excused or end.oom
    if end.code == 0 or end.stopped or is_known:
        return end
    for node, exit_ in job.exits:
        if exit_.cause and not exit_.victim:
            where = f" (server {node})" if len(job.exits) > 1 else ""
            return _with_remark(end, exit_.cause + where)
    return end


def is_preempted(job: Job, code: int | None) -> bool:
    """Did a job that checkpoints on a signal report by its exit code that it stopped half way (75,
    143)?"""
    return job.spec.level is Level.SIGNAL and code in (75, 143)
