"""Why a job waits, or why it has these GPUs and not more or fewer: read from the very round that
decided it."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.core.explain import what_if
from gpq.core.explain.explanation import Explained
from gpq.core.explain.obstacles import _silence
from gpq.core.explain.pending import _total, why_pending
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.device_status import (
    drain_line,
    gpus,
    intruders,
    reservation_line,
)
from gpq.core.feasibility.leases import Silence, silence, span
from gpq.core.feasibility.mobility import drained_under, is_fixed
from gpq.core.feasibility.reservations import reserved_under
from gpq.core.feasibility.shapes import feasible, gpu_range, nodes_up
from gpq.core.freedoms import words
from gpq.core.freedoms.freedoms import bound, is_cramped
from gpq.core.goodput import estimates
from gpq.core.model.jobs import ANY_NUMBER, HOLDS_DEVICES, Job, JobState, Level, StopReason, Wish
from gpq.core.model.placements import Shape
from gpq.core.model.profile import RETUNE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.batch_orders import typed
from gpq.core.rounds.motives import own_wish
from gpq.core.rounds.planning import stop_of
from gpq.core.rounds.reconcile import stuck

WORTH_NAMING = 1.01  # goodput of another batch over that of now: less is rounding


def explain(snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job) -> Explained:
    """The whole answer about one live job. `allocation` is the last round's, None before the
    first."""
    silent = silence(snapshot, job, snapshot.now)
    if silent is not None:
        return _why_unknown(snapshot, job, silent)
    held = stuck(snapshot, job)
    if held:
        where = ", ".join(job.nodes)
        reasons = (
            held,
            (
                f"it keeps {job.placement} until the kernel lets it go; everything else on {where}"
                " goes on"
            ),
        )
        return Explained(
            f"stuck: {held}",
            reasons,
            (f"if it never ends, reboot {where} when its other jobs are over",),
        )
    if job.wish is Wish.CANCEL:
        return Explained("being cancelled", ("it was cancelled; its processes are being ended",))
    match job.state:
        case JobState.HELD:
            return _why_held(job)
        case JobState.PENDING:
            return why_pending(snapshot, allocation, job)
        case JobState.STARTING:
            return Explained("starting", (f"its processes are being started on {job.placement}",))
        case JobState.STOPPING:
            return _why_stopping(snapshot, job)
        case _:
            return _why_running(snapshot, allocation, job)


def _why_stopping(snapshot: Snapshot, job: Job) -> Explained:
    how = stop_of(job, job.stop or StopReason.RESIZE, "")
    since = snapshot.now - job.stop_sent_at if job.stop_sent_at is not None else 0.0
    what = "end" if how.mode == "kill" else "checkpoint"
    said = (
        f"asked to stop {span(max(since, 0.0))} ago ({job.stop}); it has {how.grace:.0f} s from"
        f" then to {what}"
    )
    return Explained(f"stopping ({job.stop})", (said,))


def _why_held(job: Job) -> Explained:
    by_gpq = job.unmet or job.quick_failures or job.crashes  # else the notice is of an earlier time
    told = by_gpq and job.notices and job.notices[-1].startswith("held")
    why = job.notices[-1] if told else "held by its user"
    reasons = (why, job.unmet) if job.unmet and job.unmet not in why else (why,)
    return Explained(why, reasons, (f"`gpq release {job.id}` queues it again",))


def _why_unknown(snapshot: Snapshot, job: Job, silent: Silence) -> Explained:
    """Nobody can tell whether it runs; that is no reason to end it, nor to start it twice."""
    gone = [name for name in silent.nodes if name not in snapshot.nodes]
    reasons = [
        _silence(snapshot, snapshot.nodes[name]) for name in silent.nodes if name not in gone
    ]
    reasons += [f"server {name} is not in the configuration any more" for name in gone]
    reasons.append("that says nothing about the job: it may run on or be over, and keeps its GPUs")
    if silent.connecting:  # it tells in a moment
        return Explained(str(silent), tuple(reasons))
    if job.wish is Wish.CANCEL or job.stop is not None:
        what = "cancel" if job.wish is Wish.CANCEL else f"stop it ({job.stop})"
        reasons.append(f"the order to {what} waits until {_list_nodes(silent)} answers")
    lost = job.spec.requeue_on_lost
    if gone:
        remedies = [
            f"`gpq cancel {job.id}` gives the job up; with the server in config.toml again, gpq"
            " hears of it again"
        ]
    else:
        given_up = f"then `gpq cancel {job.id}` gives the job up"
        remedies = [
            f"if {_list_nodes(silent)} is gone for good, take it out of config.toml, {given_up}"
        ]
    if silent.requeue_in is not None:
        ends = f"--requeue-on-lost: it ends itself {span(lost)} after the last contact"
        reasons.append(f"{ends} and is queued again in {span(silent.requeue_in)} at the earliest")
    else:
        reasons.append(
            "without --requeue-on-lost it is not started a second time, however long the silence"
        )
    return Explained(str(silent), tuple(reasons), tuple(remedies))


def _list_nodes(silent: Silence) -> str:
    return ", ".join(silent.nodes)


def _why_batch(job: Job) -> list[str]:
    """What its batch is worth, against that which it was submitted with."""
    profile, declared = job.profile, job.profile.declared
    if declared is None or job.placement is None or profile.atomic_batch <= 0:
        return []
    shape = typed(job.placement)
    total = job.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    if RETUNE in profile.lost:
        return [f"its total batch is {total}"]
    if not declared.adaptive:
        return [f"its total batch is {total}: it lets gpq change its GPUs, not its batch"]
    now = estimates.goodput_of(job, shape, profile.atomic_batch, profile.accum_steps)
    best = estimates.best_batch(job, shape, declared.batch_size)
    if now is None or best is None or best.goodput <= 0:
        return [f"its total batch is {total}; what another would be worth is not known yet"]
    if total == best.total_batch:
        near = (
            "the one"
            if total == declared.batch_size
            else f"the nearest here to the {declared.batch_size} that"
        )
        return [f"its total batch of {total} is {near} it declared, and {_better(job, shape, now)}"]
    ratio = now / best.goodput
    return [
        f"its total batch of {total} gives x{ratio:.2f} of the goodput of the {declared.batch_size}"
        " that it declared"
    ]


def _better(job: Job, shape: Shape, now: float) -> str:
    """Whether another batch, however large it may become, is worth more on the GPUs that it has."""
    whole = estimates.best_batch(job, shape)
    if whole is None or now <= 0 or whole.goodput < WORTH_NAMING * now:
        return "none is worth more on these GPUs"
    return (
        f"{whole.total_batch} would give x{whole.goodput / now:.2f} of its goodput, by what is"
        " known now"
    )


def _why_running(
    snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job
) -> Explained:
    headline = f"runs on {gpus(job.replicas)}"
    reasons = [
        f"{drain_line(snapshot, name)}; nothing new is placed there"
        for name in drained_under(job, snapshot)
    ]
    reasons += [
        f"it is to leave: {reservation_line(snapshot, held)}"
        for held in reserved_under(job, snapshot)
        if job.movable
    ]
    reasons += [f"warning: {line}" for line, _ in intruders(snapshot, job)]
    unused = idle_gpus.line(snapshot, job)
    if unused:
        reasons.append(f"warning: it {unused}")
    if job.idle:
        keeps = "keeps" if job.replicas == job.spec.min_gpus else "is to have"
        reasons.append(
            f"it did not use what it had, and {keeps} {gpus(job.spec.min_gpus)} until it uses them"
        )
    if job.spec.background:
        reasons.append(
            "it runs in the background: it leaves as soon as somebody else can use its GPUs"
        )
    if job.resumable and not job.movable and not job.spec.rigid:
        told = (*words.of_size(snapshot, job), *_why_batch(job), *words.of_batch(job))
        return Explained(headline, (*reasons, *told), tuple(words.remedies(job)))
    if not job.movable:
        level = job.spec.level
        if level is Level.SCRIPT and not job.spec.rigid:
            reasons.append(
                "the script has not declared itself (no gpq.init() and loader yet), so it is not"
                " moved"
            )
        elif not job.spec.background:
            reasons.append("it is rigid: it runs to its end with the GPUs that it asked for")
        return Explained(headline, tuple(reasons))
    shapes = feasible(job, snapshot)
    points = estimates.curve(job, shapes)
    reasons += words.of_size(snapshot, job)
    reasons += [*_why_batch(job), *words.of_batch(job)]
    reasons += what_if.lines(snapshot, job)
    reasons += _within_range(snapshot, job)
    others = [
        other
        for other in snapshot.jobs.values()
        if other.state in HOLDS_DEVICES and other.id != job.id
    ]
    if others:
        count = sum(len(node.devices) for node in nodes_up(snapshot))
        reasons.append(
            f"{gpus(count)} are shared with {len(others)} other running"
            f" {'job' if len(others) == 1 else 'jobs'}"
        )
    if is_fixed(job, snapshot):
        reasons.append("it was started a moment ago and is not moved again yet")
    if not points:
        reasons.append("its goodput is not known yet: the first step times have to come in")
    return Explained(headline, tuple(reasons), tuple(words.remedies(job)))


def _within_range(snapshot: Snapshot, job: Job) -> list[str]:
    """How what a running job has lies against the fewest and the most that it may have, and what
    sets these."""
    has, asked, total = job.replicas, own_wish(job.spec, job.replicas), _total(snapshot)
    if asked:
        return [
            f"it has {gpus(has)}, and {asked}: it is resized as soon as there is room and it may be"
            " moved"
        ]
    if is_cramped(job):
        return []
    fewest, most = gpu_range(bound(job, snapshot), ANY_NUMBER)
    if fewest == most == has:
        return [f"it has exactly what it may have ({has})"]
    said = []
    if has == most:
        said.append(f"it has as many as it may have ({most})")
    elif has >= total:
        said.append(f"it has all the GPUs that there are ({has})")
    if has == fewest:
        said.append(f"it has the fewest that it may have ({fewest})")
    return said
