"""Why a running job has these GPUs and this batch, and what one more GPU would be worth to it, or
to the jobs that would give it."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core import freedoms
from gpq.core.explain import standings
from gpq.core.explain.obstacles import JobReasons, Reason, lines, reason, total_gpus
from gpq.core.feasibility import idle_gpus
from gpq.core.feasibility.device_status import drain_line, intruders, reservation_line
from gpq.core.feasibility.mobility import drained_under, held_by, is_fixed
from gpq.core.feasibility.reservations import reserved_under
from gpq.core.feasibility.shapes import by_type, feasible, gpu_range, nodes_up, shape_on, supply
from gpq.core.freedoms import bind, is_cramped
from gpq.core.goodput import estimates
from gpq.core.goodput.models import is_beyond
from gpq.core.model.jobs import ANY_NUMBER, Job, JobState, Level
from gpq.core.model.placements import Shape
from gpq.core.model.profile import RETUNE, Declared
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.batch_orders import typed_shape
from gpq.core.rounds.motives import own_wish

WORTH_NAMING = 1.01  # goodput of another batch over the present one: a smaller ratio is rounding


def why_running(snapshot: Snapshot, job: Job) -> JobReasons:
    headline = reason("runs", gpus=job.replicas)
    reasons = [*_circumstances(snapshot, job), *standings.of_running(snapshot, job)]
    if not job.movable and (job.spec.rigid or not job.resumable):
        if job.spec.level is Level.SCRIPT and not job.spec.rigid:
            reasons.append(reason("undeclared"))
        elif not job.spec.background:
            reasons.append(reason("rigid"))
        return JobReasons(headline, tuple(reasons))
    reasons += lines("fixed-size", freedoms.of_size(snapshot, job))
    reasons += _why_batch(job)
    reasons += lines("fixed-batch", freedoms.of_batch(job))
    if not job.movable:
        return JobReasons(headline, tuple(reasons), remedies(job))
    reasons += gain_reasons(snapshot, job)
    reasons += _within_range(snapshot, job)
    rivals = len(snapshot.holders) - 1
    if rivals:
        count = sum(len(node.devices) for node in nodes_up(snapshot))
        reasons.append(reason("shared-gpus", gpus=count, jobs=rivals))
    reasons += _latest_move(job)
    if is_fixed(job, snapshot):
        reasons.append(reason("started-just-now"))
    if not estimates.curve(job, feasible(job, snapshot)):
        unknown = reason("goodput-unknown")
        reasons.append(reason("no-model") if is_beyond(job.profile) else unknown)
    return JobReasons(headline, tuple(reasons), remedies(job))


def _latest_move(job: Job) -> list[Reason]:
    """What the restart that began this attempt took, and what its resize promised and brought, if
    it was one."""
    reasons = []
    for times in job.restart_times[-1:]:
        if times.attempt == job.attempt:
            how = "in a standby" if times.warm else "in a new interpreter"
            stop, start = times.stop or 0.0, times.start
            reasons.append(
                reason("last-restart", seconds=stop + start, how=how, stop=stop, start=start)
            )
    for gain in job.gains[-1:]:
        if gain.attempt == job.attempt:
            before, after, ratio = gain.before, gain.after, gain.promise.ratio
            resize = reason("resize-promised", before=before, gpus=after, promised=ratio)
            if (measured := gain.measured) is not None:
                resize = reason(
                    "resize-brought", before=before, gpus=after, promised=ratio, measured=measured
                )
            reasons.append(resize)
    return reasons


def remedies(job: Job) -> tuple[Reason, ...]:
    """What would give gpq back the freedoms that the job's loop takes away."""
    return tuple(lines("habit-remedy", freedoms.remedies(job)))


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
    profile, base = job.profile, declared.batch_size
    now = estimates.goodput_of(job, shape, profile.atomic_batch, profile.accum_steps)
    best = estimates.best_batch(job, shape, base)
    if now is None or best is None:
        return reason("batch-worth-unknown", total=total)
    if total != best.total_batch:
        return reason("batch-worth", total=total, ratio=now / best.goodput, declared=base)
    # whether another batch of any size is worth more on its present GPUs
    better, freest = reason("no-better-batch"), estimates.best_batch(job, shape)
    if freest is not None and freest.goodput >= WORTH_NAMING * now > 0:
        better = reason("better-batch", total=freest.total_batch, ratio=freest.goodput / now)
    if total == base:
        return reason("batch-declared", total=total, better=better)
    return reason("batch-near-declared", total=total, declared=base, better=better)


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


@dataclass(frozen=True, slots=True)
class Change:
    """`gpus` instead of the present number, and the ratio of its goodput then to that now."""

    job: JobId
    gpus: int
    ratio: float
    gpu_type: str = ""  # if there are several


def more(snapshot: Snapshot, job: Job) -> Change | None:
    """With the next larger number of GPUs that it could have here. None if there is none, or if
    nothing is known."""
    return _change(snapshot, job, +1)


def fewer(snapshot: Snapshot, job: Job) -> Change | None:
    return _change(snapshot, job, -1)


def _change(snapshot: Snapshot, job: Job, way: int) -> Change | None:
    if job.placement is None or not job.elastic:
        return None
    here = typed_shape(job.placement)
    shapes = [
        shape for shape in feasible(job, snapshot) if (shape.replicas - here.replicas) * way > 0
    ]
    if not shapes:
        return None
    count = min(shapes, key=lambda shape: shape.replicas * way).replicas
    now, (best, gpu_type) = (
        _goodput(job, here),
        max((_goodput(job, shape), shape.gpu_type) for shape in shapes if shape.replicas == count),
    )
    return Change(job.id, count, best / now, gpu_type) if now > 0 and best > 0 else None


def _goodput(job: Job, shape: Shape) -> float:
    points = estimates.curve(job, [shape])
    return points[0].goodput if points else 0.0


def givers(snapshot: Snapshot, job: Job) -> list[Change]:
    """The other running jobs that could give GPUs. Those that would lose least come first."""
    changes = [
        change
        for runner in snapshot.jobs.values()
        if runner.state is JobState.RUNNING
        and runner.id != job.id
        and (change := fewer(snapshot, runner)) is not None
    ]
    return sorted(changes, key=lambda change: (-change.ratio, change.job))


def free(snapshot: Snapshot, job: Job, gpu_type: str = "") -> int:
    """Unheld GPUs that the job could use now. Their servers answer and are not drained, and the
    GPUs are in order and reserved for nobody else. If a type is given, only GPUs of that type."""
    offer = by_type(supply(snapshot, job, held_by(snapshot)), snapshot)
    own = job.placement.devices if job.placement is not None else frozenset()
    return sum(
        (node, device) not in own
        for name, nodes in offer.items()
        if gpu_type in ("", name)
        for node, devices in nodes.items()
        for device in devices
    )


def gain_reasons(snapshot: Snapshot, job: Job) -> list[Reason]:
    """Empty if its goodput is not known."""
    change = more(snapshot, job)
    if change is None:
        return []
    if change.ratio <= 1:
        return [reason("more-gpus-no-faster", gpus=change.gpus, ratio=change.ratio)]
    worth = {"gpus": change.gpus, "ratio": change.ratio}
    if snapshot.config.gang:
        return [reason("more-gpus-gang", policy=snapshot.config.policy, **worth)]
    own = job.replicas if change.gpu_type == typed_on(snapshot, job) else 0
    unused = free(snapshot, job, change.gpu_type)
    if unused >= change.gpus - own:
        code = "more-gpus-not-worth-restart"
        if job.idle:
            code = "more-gpus-but-idle"
        elif is_fixed(job, snapshot):
            code = "more-gpus-but-just-moved"
        return [reason(code, unused=unused, **worth)]
    rivals = givers(snapshot, job)
    if not rivals:
        return [reason("more-gpus-no-giver", **worth)]
    return [reason("more-gpus", **worth), reason("givers", changes=rivals[:2])]


def typed_on(snapshot: Snapshot, job: Job) -> str:
    """The type of its GPUs as shapes name it. "" if all GPUs have one type."""
    return shape_on(job.placement, snapshot).gpu_type if job.placement is not None else ""
