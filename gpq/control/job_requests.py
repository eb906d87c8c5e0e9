"""Requests about existing jobs: cancel, hold, release, requeue. Each becomes events, or a line that
says why nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpq.control.dependencies import Removed, StillEnding
from gpq.core.feasibility.checkpoints import has_checkpoint
from gpq.core.freedoms import cures, warning
from gpq.core.model.events import (
    CancelAsked,
    Edited,
    Event,
    HoldAsked,
    ReleaseAsked,
    RequeueAsked,
)
from gpq.core.model.jobs import (
    HOLDS_DEVICES,
    Dependency,
    DesiredState,
    Job,
    JobState,
    Level,
)
from gpq.core.model.profile import RESIZE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.errors import GpqError, NotFound, Refused
from gpq.rpc import job_answers

# -- queue control ---------------------------------------------------------------------------------

Verdict = Event | str  # what to do about one job, or a line that says why nothing happens
Judge = Callable[[Job, Seconds, str], Verdict]


def cancel(snapshot: Snapshot, jobs: Iterable[JobId], now: Seconds, by: str) -> list[Event]:
    """Repeating it does no harm: a job that is already being cancelled gets no second event."""
    live = map(snapshot.jobs.get, jobs)
    return [
        CancelAsked(now, job.id, by)
        for job in live
        if job is not None and job.wish is not DesiredState.CANCEL
    ]


def refuse_while_ending(job: Job) -> None:
    if job.wish is DesiredState.CANCEL:
        raise Refused(
            f"job {job.id} is being cancelled",
            f"when it has ended, `gpq requeue {job.id}` runs it again",
        )


def hold(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a running job that would lose its work."""
    refuse_while_ending(job)
    if job.wish is DesiredState.HOLD:
        return f"job {job.id} is already held"
    if job.state in HOLDS_DEVICES and not job.resumable:
        raise Refused(
            f"job {job.id} is running, and {_immovable(job)}",
            _once_declared(job) or f"`gpq cancel {job.id}` ends it",
        )
    return HoldAsked(now, job.id, by)


def release(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a job that is being cancelled."""
    refuse_while_ending(job)
    if job.state is not JobState.HELD and job.wish is not DesiredState.HOLD:
        return f"job {job.id} is not held: it is {job.state}"
    return ReleaseAsked(now, job.id, by)


def requeue(job: Job, now: Seconds, by: str) -> Verdict:
    """Raises Refused for a running job that would lose its work."""
    refuse_while_ending(job)
    if job.state is JobState.PENDING and job.wish is DesiredState.RUN:
        return f"job {job.id} is already in the queue"
    if job.wish is DesiredState.REQUEUE and job.state in HOLDS_DEVICES:
        return f"job {job.id} is already being requeued"
    if job.state in HOLDS_DEVICES and not job.resumable:
        raise Refused(
            f"job {job.id} is running, and {_immovable(job)}",
            _once_declared(job)
            or f"`gpq cancel {job.id}`, then `gpq requeue {job.id}`: it starts again",
        )
    return RequeueAsked(now, job.id, by)


def requeue_fresh(job: Job, now: Seconds, by: str) -> Verdict:
    raise Refused(
        f"job {job.id} has not ended, so gpq does not start it from the beginning",
        f"`gpq cancel {job.id}`, then `gpq requeue --fresh {job.id}`",
    )


def requeue_ended(
    ended: Sequence[Job],
    fresh: bool | None,
    ready: Callable[[Job, Sequence[Dependency]], tuple[Dependency, ...]],
) -> Judge:
    """A judge for jobs that have ended: they come back as they are, with their ties.

    `fresh`: as in `requests.Requeue`. `ready` returns those of a job's conditions that it has to
    wait for, and raises Refused if it cannot run again.
    """

    def awaits(job: Job) -> tuple[Dependency, ...]:
        return ready(job, [one for one in job.spec.after if one.job not in renewed])

    def is_refused(job: Job) -> bool:
        try:
            awaits(job)
        except Refused:
            return True
        return False

    def judge(job: Job, now: Seconds, by: str) -> Verdict:
        if job.spec.console:
            raise Refused(
                f"job {job.id} was a session, and its input is gone",
                "start a new one with `gpq run` or `gpq shell`",
            )
        anew = job.state is JobState.COMPLETED if fresh is None else fresh
        return RequeueAsked(now, job.id, by, job, awaits(job), anew, _beginning(job, anew=anew))

    renewed = {job.id for job in ended}
    while refused := {job.id for job in ended if job.id in renewed and is_refused(job)}:
        renewed -= refused  # then no other job may wait for these
    return judge


def _beginning(job: Job, *, anew: bool) -> str:
    """Where its next attempt starts."""
    step, has_completed = job.profile.checkpoint_step, job.state is JobState.COMPLETED
    if anew and job.files is not None:
        line = "it had completed, so it" if has_completed else "it"
        line += (
            " starts from the beginning. What was in its checkpoint folder moves to"
            f" {job.id}.before-{job.next_attempt}"
        )
        if has_completed and has_checkpoint(job):
            line += ". With --no-fresh it resumes from its last checkpoint instead"
        return line
    if has_checkpoint(job):
        return "it resumes from its newest checkpoint" + (f", of step {step}" if step else "")
    if job.files is None:
        return "it starts from the beginning"
    return "it starts again. gpq knows of no checkpoint and leaves its checkpoint folder as it is"


def may_declare(job: Job) -> bool:
    """Is it a script that may still tell gpq that it can be resized? Then waiting helps, for a
    while."""
    return job.spec.level is Level.SCRIPT and job.profile.declared is None


def _once_declared(job: Job) -> str:
    if not may_declare(job):
        return ""
    return (
        f"if it uses gpq's library, wait for its first steps. Otherwise `gpq cancel {job.id}` ends"
        " it"
    )


def _immovable(job: Job) -> str:
    if may_declare(job):
        return "its script has not declared itself to gpq yet, so stopping it would lose its work"
    return "it cannot stop and restart without losing its work"


def changes(
    snapshot: Snapshot,
    jobs: Sequence[JobId],
    ended: Sequence[Job],
    judge: Judge,
    now: Seconds,
    by: str,
    of_ended: Judge | None = None,
    removed: Removed = lambda ids: (),
) -> tuple[list[Event], job_answers.Changed]:
    """The events for all `jobs`, and the answer. The jobs in `ended` have ended, and `of_ended`
    judges them. `removed` says which ids were removed. Raises StillEnding for a job just ending.

    A single job is refused with an error. One among several gets a line in `unchanged`, and the
    others change.
    """
    events: list[Event] = []
    changed: list[int] = []
    unchanged: list[str] = []
    messages: list[str] = []
    warnings: list[str] = []
    ended_by_id = {job.id: job for job in ended}
    for name in jobs:
        job = snapshot.jobs.get(name)
        try:
            if job is not None:
                verdict = judge(job, now, by)
            elif of_ended is None:
                raise Refused(f"job {name} has ended", f"`gpq requeue {name}` runs it again")
            elif name in ended_by_id:
                verdict = of_ended(ended_by_id[name], now, by)
            elif removed([name]):
                raise NotFound(f"job {name} ended long ago and was removed")
            else:
                raise StillEnding
        except GpqError as error:
            if len(jobs) == 1:
                raise
            unchanged.append(error.message)
            continue
        if isinstance(verdict, str):
            unchanged.append(verdict)
        else:
            events.append(verdict)
            changed.append(int(verdict.job))  # type: ignore[union-attr]
            if isinstance(verdict, Edited):
                messages.append(f"job {verdict.job}: {verdict.said}")
            elif isinstance(verdict, RequeueAsked):
                line = f"job {verdict.job} requeued"
                messages.append(f"{line}: {verdict.said}" if verdict.said else line)
            if job is not None and isinstance(verdict, HoldAsked | RequeueAsked):
                warnings += _stop_warnings(job)
    return events, job_answers.Changed(changed, unchanged, messages, warnings)


def _stop_warnings(job: Job) -> list[str]:
    """What a stop costs a job that has GPUs and does not resume exactly, and how to fix that."""
    stop_cost = warning(job) if job.state in HOLDS_DEVICES and job.resumable else ""
    return [f"job {job.id}: {stop_cost}", *cures(job, RESIZE)] if stop_cost else []
