"""A job after one fact about it. Decides nothing: `attempt_end` concludes what follows from a
fact."""

from __future__ import annotations

from dataclasses import replace

from gpq.core import freedoms
from gpq.core.accounting import accrual
from gpq.core.model.events import (
    CancelAsked,
    Cancelled,
    Edited,
    Event,
    Exited,
    Failed,
    Held,
    HoldAsked,
    Idled,
    Launched,
    Profiled,
    Pulsed,
    ReleaseAsked,
    Released,
    RequeueAsked,
    Retuned,
    Staged,
    Started,
    StartRefused,
    Stopped,
    StopSent,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import (
    HOLDS_DEVICES,
    DesiredState,
    Job,
    JobState,
    StopReason,
    with_notices,
    without_hold,
)
from gpq.core.model.placements import Exit, FilesAt
from gpq.core.model.units import NodeId
from gpq.core.state import learn_profile
from gpq.core.state.attempt_end import is_preempted
from gpq.core.state.lifecycle import advance


def apply(job: Job, event: Event) -> Job:
    """The job after one fact about it. The same object if the fact is stale."""
    match event:
        case CancelAsked() | HoldAsked() | ReleaseAsked() | RequeueAsked():
            return _ask(job, event)
        case Edited():
            return _edit(job, event)
        case Idled():
            return with_notices(replace(job, idle=True), event.why)
        case Held() | Released():
            return _hold(job, event)
        case Launched():
            return _launch(job, event)
        case (
            StopSent()
            | Retuned()
            | Staged()
            | Started()
            | StartRefused()
            | Exited()
            | Profiled()
            | Pulsed()
        ):
            return _of_attempt(job, event)
        case Stopped():
            return _stop(job, event)
        case Succeeded() | Failed() | Cancelled() | TimeLimitReached():
            return _finish(job, event)
    raise TypeError(f"{type(event).__name__} is not about a job")


def _ask(job: Job, event: CancelAsked | HoldAsked | ReleaseAsked | RequeueAsked) -> Job:
    """A wish. After its end, a job takes no more wishes."""
    if isinstance(event, CancelAsked):
        return replace(job, wish=DesiredState.CANCEL)
    if job.wish is DesiredState.CANCEL:
        return job
    if isinstance(event, HoldAsked):
        return replace(job, wish=DesiredState.HOLD)
    # A release means that the user wants it now. A waiting job is where a requeue leads. A wish to
    # hold it may not have been followed yet.
    if isinstance(event, ReleaseAsked) or job.state is JobState.PENDING:
        return _again(job, DesiredState.RUN)
    return _again(job, DesiredState.REQUEUE)


def reopen(job: Job, event: RequeueAsked) -> Job:
    """A job that had ended, back in the queue with its number and its ties. Times, failures and
    what it received count from here, as for a new job."""
    account = accrual.open_account(event.at)
    end = job.exit.note if job.exit is not None else ""
    notices = (_of_earlier(job, line) if line == end else line for line in job.notices)
    after = Job(
        job.id, job.spec, event.at, advance(job.state, event), attempt=job.attempt,
        lost_attempts=job.lost_attempts, exit=job.exit, restarts=job.restarts, resizes=job.resizes,
        awaits=event.awaits, last_replicas=job.last_replicas, fresh=event.fresh,
        notices=tuple(notices), account=account,
    )  # fmt: skip
    if event.fresh:
        return after
    account = replace(account, peak=job.account.peak)
    return replace(after, profile=job.profile, files=job.files, account=account)


def _edit(job: Job, event: Edited) -> Job:
    remaining_habits = freedoms.without_accepted(job.profile.habits, event.spec.accept)
    return replace(
        job,
        spec=event.spec,
        awaits=event.awaits,
        unmet=job.unmet if event.spec.after == job.spec.after else "",
        unmet_by=job.unmet_by if event.spec.after == job.spec.after else (),
        account=accrual.edit(job, event.at),
        profile=freedoms.with_habits(job.profile, remaining_habits),
    )


def _hold(job: Job, event: Held | Released) -> Job:
    state = advance(job.state, event)
    if isinstance(event, Released):
        account = accrual.release(job, event.at)
        return replace(without_hold(job), state=state, wish=DesiredState.RUN, account=account)
    account = accrual.hold(job, event.at)
    # what only waits for another job comes free with it
    wish = job.wish if job.unmet else DesiredState.HOLD
    job = replace(job, state=state, wish=wish, target=None, account=account)
    return with_notices(job, event.why)


def _again(job: Job, wish: DesiredState) -> Job:
    """Its user wants another try, so earlier failures no longer count."""
    after = replace(job, wish=wish, unmet="", unmet_by=())
    return replace(after, quick_failures=0, soon_ends=0, crashes=0, not_before=0.0)


def _launch(job: Job, event: Launched) -> Job:
    again = job.attempt > 0
    resized = again and job.last_replicas != event.placement.replicas
    return replace(
        job,
        state=advance(job.state, event),
        attempt=event.attempt,
        placement=event.placement,
        order=event.order,
        port=event.port,
        launched_at=event.at,
        started_at=None,
        started_nodes=(),
        exits=(),
        stop=None,
        stop_sent_at=None,
        target=None,
        stop_forced=False,
        marks=(),
        gains=learn_profile.begin_gain(job, event),
        report_offset=0,
        staged_seconds=0.0,
        restarts=job.restarts + again,
        resizes=job.resizes + resized,
        last_replicas=event.placement.replicas,
        wish=DesiredState.RUN if job.wish is DesiredState.REQUEUE else job.wish,
        # What the last attempt did says nothing about this one until it reports.
        profile=replace(
            job.profile, atomic_batch=0, accum_steps=0, samples_per_second=0.0, ranks=()
        ),
        pulses=(),
        account=accrual.launch(job, event.at),
    )


def _of_attempt(
    job: Job,
    event: StopSent | Retuned | Staged | Started | StartRefused | Exited | Profiled | Pulsed,
) -> Job:
    if event.attempt != job.attempt or job.state not in HOLDS_DEVICES:
        return job  # the fence: news of an older attempt
    match event:
        case StopSent():
            return _stop_sent(job, event)
        case Retuned():
            return replace(job, order=event.order)
        case Staged():
            if job.state is not JobState.STARTING:
                return job
            return replace(job, staged_seconds=max(job.staged_seconds, event.seconds))
        case Started():
            return with_notices(_start(job, event), event.note)
        case StartRefused():
            return _refuse(job, event)
        case Exited():
            # The end as it counts: no later than its report, and a stop if its code says so.
            stopped = event.exit.stopped or is_preempted(job, event.exit.code)
            ended_at = min(event.exit.ended_at or event.at, event.at)
            return _exit(job, event.node, replace(event.exit, stopped=stopped, ended_at=ended_at))
        case Profiled():
            return _profile(job, event)
        case Pulsed():
            other_pulses = [pulse for pulse in job.pulses if pulse.node != event.node]
            pulses = sorted([*other_pulses, *event.ranks], key=lambda pulse: pulse.rank)
            return replace(job, pulses=tuple(pulses))


def _refuse(job: Job, event: StartRefused) -> Job:
    end = Exit(code=event.code, note=event.reason, ended_at=event.at, lost=event.transient)
    if event.stays and job.files is not None:
        job = replace(job, files=replace(job.files, stays=event.stays, looked_at=event.at))
    return _exit(job, event.node, end)


def _profile(job: Job, event: Profiled) -> Job:
    if event.offset < 0:
        return with_notices(job, *event.notices)
    return learn_profile.learn(job, event) if event.offset > job.report_offset else job


def _stop_sent(job: Job, event: StopSent) -> Job:
    after = replace(
        job,
        state=advance(job.state, event),
        stop=event.reason,
        stop_sent_at=event.at if job.stop_sent_at is None else job.stop_sent_at,
        target=event.target,
        stop_forced=event.reason is StopReason.CANCEL,
    )
    if job.resumable and event.reason not in (StopReason.CANCEL, StopReason.TIME):
        return with_notices(after, freedoms.warning(job))
    return after


def _start(job: Job, event: Started) -> Job:
    if event.node in job.started_nodes:
        return job
    job = replace(job, started_nodes=(*job.started_nodes, event.node))
    if event.node == job.nodes[0]:
        # rank 0 writes the checkpoints
        proved = job.files is not None and job.files.proved
        job = replace(job, files=FilesAt(event.node, event.storage, proved))
    missing = len(job.parts) > len(job.started_nodes)
    if missing or job.state is not JobState.STARTING:
        return job
    began = min(max(event.since or event.at, job.launched_at or 0.0), event.at)
    first = job.first_started_at if job.first_started_at is not None else began
    state = advance(job.state, event)
    return replace(job, state=state, started_at=began, first_started_at=first, fresh=False)


def _exit(job: Job, node: NodeId, end: Exit) -> Job:
    if any(exit_node == node for exit_node, _ in job.exits):
        return job
    return replace(job, exits=(*job.exits, (node, end)))


def _stop(job: Job, event: Stopped) -> Job:
    end = event.exit
    ended, files = end.ended_at or event.at, job.files
    # A job that ends with 0 when asked to save also proves a checkpoint.
    proves = end.stopped or (end.code == 0 and end.asked in ("checkpoint", "signal"))
    # failures that came soon. An end that came soon but was no failure changes nothing
    quick_failures = job.quick_failures if event.soon else 0
    after = replace(
        _release(job, ended),
        state=advance(job.state, event),
        account=accrual.over(job, event, ended),
        exit=end,
        stop_seconds=None if job.stop_sent_at is None else max(ended - job.stop_sent_at, 0.0),
        files=replace(files, proved=True) if files is not None and proves else files,
        not_before=event.not_before,
        failures=job.failures + event.failed,
        quick_failures=job.quick_failures + 1 if event.quick else quick_failures,
        soon_ends=job.soon_ends + 1 if event.soon else 0,
        crashes=job.crashes + 1 if event.crashed else 0,
        wish=DesiredState.RUN if job.wish is DesiredState.REQUEUE else job.wish,
    )
    return with_notices(after, _of_earlier(job, end.note)) if end.note else after


def _of_earlier(job: Job, note: str) -> str:
    """A note on the end of an attempt after which the job goes on."""
    return f"attempt {job.attempt}: {note}"


def _finish(job: Job, event: Succeeded | Failed | Cancelled | TimeLimitReached) -> Job:
    if job.state in HOLDS_DEVICES:
        ended = event.exit.ended_at or event.at
        account = accrual.over(job, event, ended)
        after = replace(_release(job, ended), account=account, exit=event.exit)
    else:
        ended = event.at
        account = replace(accrual.so_far(job, ended), mark=None)
        after = replace(without_hold(job), account=account)
    after = replace(after, state=advance(job.state, event), ended_at=ended)
    return with_notices(after, event.exit.note)


def _release(job: Job, ended: float) -> Job:
    """The attempt is over: its devices become free and its time goes into the account."""
    ran = max(ended - job.launched_at, 0.0) if job.launched_at is not None else 0.0
    return replace(
        job,
        placement=None,
        service=job.service + ran * job.replicas,
        run_seconds=job.run_seconds + ran,
        launched_at=None,
        started_at=None,
    )
