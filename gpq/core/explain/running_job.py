"""Why a running job has these GPUs and this batch, and not more or fewer."""

from __future__ import annotations

from gpq.core.explain import what_if
from gpq.core.explain.obstacles import total_gpus
from gpq.core.explain.reasons import JobReasons, Reason, lines, reason
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.device_status import drain_line, intruders, reservation_line
from gpq.core.feasibility.mobility import drained_under, is_fixed
from gpq.core.feasibility.reservations import reserved_under
from gpq.core.feasibility.shapes import feasible, gpu_range, nodes_up
from gpq.core.freedoms import words
from gpq.core.freedoms.freedoms import bind, is_cramped
from gpq.core.goodput import estimates
from gpq.core.goodput.models import is_beyond
from gpq.core.model.jobs import ANY_NUMBER, HOLDS_DEVICES, Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.profile import RETUNE, Declared
from gpq.core.model.snapshot import Snapshot
from gpq.core.rounds.batch_orders import typed_shape
from gpq.core.rounds.motives import own_wish

WORTH_NAMING = 1.01  # goodput of another batch over the present one: a smaller ratio is rounding


def why_running(snapshot: Snapshot, job: Job) -> JobReasons:
    headline = reason("runs", gpus=job.replicas)
    reasons = _circumstances(snapshot, job)
    if job.resumable and not job.movable and not job.spec.rigid:
        reasons += _why_size_and_batch(snapshot, job)
        return JobReasons(headline, tuple(reasons), remedies(job))
    if not job.movable:
        reasons += _why_not_moved(job)
        return JobReasons(headline, tuple(reasons))
    reasons += _why_size_and_batch(snapshot, job)
    reasons += what_if.reasons(snapshot, job)
    reasons += _within_range(snapshot, job)
    reasons += _rivals(snapshot, job)
    reasons += _last_restart(job)
    reasons += _last_resize(job)
    if is_fixed(job, snapshot):
        reasons.append(reason("started-just-now"))
    if not estimates.curve(job, feasible(job, snapshot)):
        unknown = reason("goodput-unknown")
        reasons.append(reason("no-model") if is_beyond(job.profile) else unknown)
    return JobReasons(headline, tuple(reasons), remedies(job))


def _last_restart(job: Job) -> list[Reason]:
    """What the restart that began this attempt took, if it was one."""
    for times in job.restart_times[-1:]:
        if times.attempt == job.attempt:
            how = "in a standby" if times.warm else "in a new interpreter"
            stop = times.stop or 0.0
            return [
                reason(
                    "last-restart",
                    seconds=stop + times.start,
                    how=how,
                    stop=stop,
                    start=times.start,
                )
            ]
    return []


def _last_resize(job: Job) -> list[Reason]:
    """What the resize that began this attempt promised and brought, if it was one."""
    for gain in job.gains[-1:]:
        if gain.attempt == job.attempt:
            before, after, promised = gain.before, gain.after, gain.promise.ratio
            if gain.measured is None:
                return [reason("resize-promised", before=before, gpus=after, promised=promised)]
            return [
                reason(
                    "resize-brought",
                    before=before,
                    gpus=after,
                    promised=promised,
                    measured=gain.measured,
                )
            ]
    return []


def remedies(job: Job) -> tuple[Reason, ...]:
    """What would give gpq back the freedoms that the job's loop takes away."""
    return tuple(lines("habit-remedy", words.remedies(job)))


def _circumstances(snapshot: Snapshot, job: Job) -> list[Reason]:
    """What is wrong with its servers and GPUs, or with how it uses them."""
    reasons = [
        reason("runs-on-drained", line=drain_line(snapshot, name))
        for name in drained_under(job, snapshot)
    ]
    if job.movable:
        reasons += [
            reason("runs-on-reserved", line=reservation_line(snapshot, reservation))
            for reservation in reserved_under(job, snapshot)
        ]
    reasons += [reason("intruder", line=line) for line, _ in intruders(snapshot, job)]
    unused = idle_gpus.line(snapshot, job)
    if unused:
        reasons.append(reason("unused-gpus", line=unused))
    if job.idle:
        code = "idle-keeps" if job.replicas == job.spec.min_gpus else "idle-shrinks"
        reasons.append(reason(code, gpus=job.spec.min_gpus))
    if job.spec.background:
        reasons.append(reason("runs-in-background"))
    return reasons


def _why_not_moved(job: Job) -> list[Reason]:
    if job.spec.level is Level.SCRIPT and not job.spec.rigid:
        return [reason("undeclared")]
    return [] if job.spec.background else [reason("rigid")]


def _why_size_and_batch(snapshot: Snapshot, job: Job) -> list[Reason]:
    return [
        *lines("fixed-size", words.of_size(snapshot, job)),
        *_why_batch(job),
        *lines("fixed-batch", words.of_batch(job)),
    ]


def _why_batch(job: Job) -> list[Reason]:
    """What its batch is worth compared with the submitted one."""
    profile, declared = job.profile, job.profile.declared
    if declared is None or job.placement is None or profile.atomic_batch <= 0:
        return []
    total = job.replicas * profile.atomic_batch * (profile.accum_steps + 1)
    if RETUNE in profile.lost:
        return [reason("batch", total=total)]
    if not declared.adaptive:
        return [reason("batch-fixed", total=total)]
    return [_worth_of_batch(job, typed_shape(job.placement), declared, total)]


def _worth_of_batch(job: Job, shape: Shape, declared: Declared, total: int) -> Reason:
    profile = job.profile
    now = estimates.goodput_of(job, shape, profile.atomic_batch, profile.accum_steps)
    best = estimates.best_batch(job, shape, declared.batch_size)
    if now is None or best is None or best.goodput <= 0:
        return reason("batch-worth-unknown", total=total)
    if total != best.total_batch:
        ratio = now / best.goodput
        return reason("batch-worth", total=total, ratio=ratio, declared=declared.batch_size)
    better = _better_batch(job, shape, now)
    if total == declared.batch_size:
        return reason("batch-declared", total=total, better=better)
    return reason("batch-near-declared", total=total, declared=declared.batch_size, better=better)


def _better_batch(job: Job, shape: Shape, now: float) -> Reason:
    """Whether another batch of any size is worth more on its present GPUs."""
    best = estimates.best_batch(job, shape)
    if best is None or now <= 0 or best.goodput < WORTH_NAMING * now:
        return reason("no-better-batch")
    return reason("better-batch", total=best.total_batch, ratio=best.goodput / now)


def _within_range(snapshot: Snapshot, job: Job) -> list[Reason]:
    """How a running job's GPUs compare with the fewest and the most that it may have, and what sets
    these limits."""
    count, order = job.replicas, own_wish(job.spec, job.replicas)
    if order:
        return [reason("resize-ordered", gpus=count, line=order)]
    if is_cramped(job):
        return []
    fewest, most = gpu_range(bind(job, snapshot), ANY_NUMBER)
    if fewest == most == count:
        return [reason("has-exactly", count=count)]
    reasons = []
    if count == most:
        reasons.append(reason("has-most", count=most))
    elif count >= total_gpus(snapshot):
        reasons.append(reason("has-all", count=count))
    if count == fewest:
        reasons.append(reason("has-fewest", count=fewest))
    return reasons


def _rivals(snapshot: Snapshot, job: Job) -> list[Reason]:
    """The jobs with which it shares the servers."""
    rivals = sum(
        rival.state in HOLDS_DEVICES and rival.id != job.id for rival in snapshot.jobs.values()
    )
    if not rivals:
        return []
    count = sum(len(node.devices) for node in nodes_up(snapshot))
    return [reason("shared-gpus", gpus=count, jobs=rivals)]
