"""Reports of the training process -> the job's profile, of which the newest measurements weigh
most, and what resizes bring: the speed of its progress before and after, next to what was promised.

The speed is measured between two marks, WINDOW to twice WINDOW apart. Progress counts steps at the
base batch size, so its speed is goodput.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpq.core.freedoms import merge_habits, with_habits, without_accepted, without_mended
from gpq.core.goodput.models import foreseen
from gpq.core.goodput.noise_curve import record
from gpq.core.model.accounts import Account, Gain, Mark, RestartTimes
from gpq.core.model.events import Launched, Profiled, TimingSums
from gpq.core.model.jobs import Job, JobSpec, with_notices
from gpq.core.model.placements import BatchOrder
from gpq.core.model.profile import Declared, LossPoint, Noise, Profile, ProfileRow
from gpq.core.model.units import Seconds
from gpq.core.state.stragglers import describe, judge, stragglers

MOST_RESTARTS = 12  # whose times are kept
# relative change of a mean that needs no new model: the model's own error is larger
TIME_TOLERANCE = 0.03
NOISE_TOLERANCE = 0.05  # relative change of the noise scale
WEIGHT_TOLERANCE = 2.0  # times as many steps
WELL_KNOWN = 30.0  # steps from which a weight says no more
# Steps beyond this many count for no more, so that a row follows a machine that changed (pollux.md
# 1.15.9).
MAX_WEIGHT = 500.0
MAX_LOSSES = 64  # points kept of a loss curve. They are written with every report of the job
WINDOW: Seconds = 30.0
SETTLING: Seconds = 120.0
LEAST_WINDOW: Seconds = 3.0  # a shorter one says nothing
MOST_GAINS = 12  # kept


def learn(job: Job, event: Profiled) -> Job:
    """The job with one report taken in. The caller has checked attempt and offset."""
    profile, account = refresh(_profile_after(job, event)), bookkept(job, event)
    marks = add_mark(job.marks, event, working=account.working_at is not None)
    after, notices = replace(job, profile=profile, marks=marks), event.notices
    if event.ranks:
        new_stragglers = sorted({*stragglers(after)} - {*stragglers(job)})
        notices += tuple(describe(after, rank) for rank in new_stragglers)
    return replace(
        after,
        gains=measure_gain(after, event.at),
        report_offset=event.offset,
        account=account,
        restart_seconds=_mean_restart(job, event),
        stop_seconds=None if event.ready else job.stop_seconds,
        restart_times=_restart_times(job, event),
        notices=with_notices(job, *notices).notices,
    )


def _profile_after(job: Job, event: Profiled) -> Profile:
    declared, order, noise = event.declared, event.retuned, event.noise
    if declared is not None:
        declared = with_overrides(declared, job.spec)
    open_habits = without_accepted(event.habits, job.spec.accept)
    habits = without_mended(merge_habits(job.profile.habits, open_habits), event.progress)
    profile = with_habits(job.profile, habits, declared)
    rows, speed = profile.rows, profile.samples_per_second
    if event.timings:
        gpu_type = job.placement.gpu_type if job.placement else ""
        rows, speed = merge(rows, event.timings, gpu_type), throughput(event.timings[-1])
    early_noise, noise_curve = profile.early_noise, profile.noise_curve
    if noise is not None and is_usable(noise):
        early_noise = early_noise or noise
        if event.progress is not None:
            noise_curve = record(noise_curve, event.progress.base_steps, noise)
    if order is not None:
        profile = _with_order(profile, order)
    if event.checkpoint_seconds is not None:
        profile = replace(
            profile,
            checkpoints=profile.checkpoints + 1,
            checkpoint_seconds=event.checkpoint_seconds,
            checkpoint_step=event.checkpoint_step,
        )
    return replace(
        profile,
        rows=rows,
        noise=noise or profile.noise,
        early_noise=early_noise,
        noise_curve=noise_curve,
        progress=event.progress or profile.progress,
        samples_per_second=speed,
        metrics=tuple(sorted({**dict(profile.metrics), **dict(event.metrics)}.items())),
        diverged=_divergences(profile, event),
        ranks=judge(profile.ranks, event.ranks) if event.ranks else profile.ranks,
        losses=with_losses(profile.losses, event.losses),
        checkpoint_bytes=event.checkpoint_bytes or profile.checkpoint_bytes,
    )


def _with_order(profile: Profile, order: BatchOrder) -> Profile:
    """With the batch that took effect. The first batch of an attempt is not a change."""
    before = (profile.atomic_batch, profile.accum_steps)
    after = (order.atomic_batch, order.accum_steps)
    is_change = order.seq > 0 and profile.atomic_batch > 0 and before != after
    return replace(
        profile,
        atomic_batch=order.atomic_batch,
        accum_steps=order.accum_steps,
        order_seq=order.seq,
        batch_changes=profile.batch_changes + is_change,
    )


def _mean_restart(job: Job, event: Profiled) -> Seconds | None:
    """What a restart of the job takes. The newest one counts for half. Until there was one, its
    first start stands for it."""
    restart = restart_took(job, event)
    if restart is None and event.ready and job.attempt == 1:
        restart = _start_seconds(job, event)
    if restart is None:
        return job.restart_seconds
    if job.restart_seconds is None:
        return restart
    return 0.5 * (job.restart_seconds + restart)


def restart_took(job: Job, event: Profiled) -> Seconds | None:
    """The time of the restart that this report ends: the stop, then the launch to the first step.
    None if it ends none."""
    if not event.ready or job.stop_seconds is None or job.launched_at is None:
        return None
    return job.stop_seconds + _start_seconds(job, event)


def _start_seconds(job: Job, event: Profiled) -> Seconds:
    """From the launch to the first step, which `event` reports."""
    return max(event.at - (job.launched_at or event.at) - job.staged_seconds, 0.0)


def _restart_times(job: Job, event: Profiled) -> tuple[RestartTimes, ...]:
    """With the restart that this report ends."""
    if not event.ready or job.attempt < 2:
        return job.restart_times
    start, stop = _start_seconds(job, event), job.stop_seconds
    save = min(job.profile.checkpoint_seconds, stop or 0.0)
    restore = min(event.restore_seconds, start)
    times = RestartTimes(job.attempt, event.warm, start, restore, stop, save)
    return (*job.restart_times, times)[-MOST_RESTARTS:]


def bookkept(job: Job, event: Profiled) -> Account:
    """With the time of the attempt's first step."""
    first = event.ready and job.account.working_at is None
    return replace(job.account, working_at=event.at) if first else job.account


def refresh(profile: Profile) -> Profile:
    """The profile with its model's basis brought up to date if needed: a new configuration, a time
    that moved by TIME_TOLERANCE, or a weight that says more. So steady reports do not each need a
    new fit."""
    rows, noise = profile.model_rows, profile.model_noise
    if not _rows_alike(rows, profile.rows):
        rows = profile.rows
    if not _noise_alike(noise, profile.noise):
        noise = profile.noise
    return replace(profile, model_rows=rows, model_noise=noise)


def _rows_alike(old: tuple[ProfileRow, ...], new: tuple[ProfileRow, ...]) -> bool:
    rows_by_key = {row.key: row for row in old}
    new_rows = [row for row in new if not _row_alike(rows_by_key.get(row.key), row)]
    return len(old) <= len(new) and (not new_rows or foreseen(old, new_rows))


def _row_alike(old: ProfileRow | None, new: ProfileRow) -> bool:
    if old is None or old is new:
        return old is new
    weights_alike = (
        min(old.weight, new.weight) >= WELL_KNOWN or new.weight <= WEIGHT_TOLERANCE * old.weight
    )
    return (
        abs(new.step_time - old.step_time) <= TIME_TOLERANCE * old.step_time
        and abs(new.grad_time - old.grad_time) <= TIME_TOLERANCE * old.grad_time
        and weights_alike
    )


def _noise_alike(old: Noise | None, new: Noise | None) -> bool:
    """Only the noise scale, var / sqr, counts."""
    if old is None or new is None or min(old.samples, new.samples) <= 0:
        return old is new
    before, after = old.var * new.sqr, new.var * old.sqr
    return abs(after - before) <= NOISE_TOLERANCE * abs(before) and (old.sqr > 0) == (new.sqr > 0)


def _divergences(profile: Profile, event: Profiled) -> tuple[tuple[str, Seconds], ...]:
    """Names of metrics that are not finite, and since when."""
    since = dict(profile.diverged)
    for name, value in event.metrics:
        if math.isfinite(value):
            since.pop(name, None)
        else:
            since.setdefault(name, event.at)
    return tuple(sorted(since.items()))


def is_usable(noise: Noise) -> bool:
    """Does it contain the noise scale, and not only a limit of it?"""
    return noise.samples > 0 and noise.sqr > 0 and noise.var > 0 and not noise.capped


def with_overrides(declared: Declared, spec: JobSpec) -> Declared:
    """What the script declared, with the user's options of the submission on top."""
    return replace(
        declared,
        batch_size=spec.batch_size or declared.batch_size,
        max_batch_size=spec.max_batch_size or declared.max_batch_size,
        min_atomic_batch=spec.min_atomic_batch or declared.min_atomic_batch,
        max_atomic_batch=spec.max_atomic_batch or declared.max_atomic_batch,
    )


def with_losses(curve: tuple[LossPoint, ...], new: tuple[LossPoint, ...]) -> tuple[LossPoint, ...]:
    """The curve with `new` at its end, at most MAX_LOSSES points. If it is full, the two neighbours
    with the fewest reports become one, so that all points have about equally many.

    If progress went back (an attempt resumed from an earlier checkpoint), the points after it are
    removed.
    """
    points = list(curve)
    for point in new:
        while points and points[-1].base_steps >= point.base_steps:
            points.pop()
        points.append(point)
        if len(points) > MAX_LOSSES:
            at = min(range(len(points) - 1), key=lambda i: points[i].weight + points[i + 1].weight)
            points[at : at + 2] = [_join(points[at], points[at + 1])]
    return tuple(points)


def _join(first: LossPoint, second: LossPoint) -> LossPoint:
    weight = first.weight + second.weight
    at = (first.base_steps * first.weight + second.base_steps * second.weight) / weight
    loss = (first.loss * first.weight + second.loss * second.weight) / weight
    # short numbers, because they are written with every report
    return LossPoint(round(at, 1), float(f"{loss:.6g}"), weight)


def merge(
    rows: tuple[ProfileRow, ...], timings: tuple[TimingSums, ...], gpu_type: str = ""
) -> tuple[ProfileRow, ...]:
    """Rows with new sums mixed in, sorted by (type, servers, replicas, micro-batch). `grad_time` is
    0 while none was measured (a GPU without accumulation, a model with its own communication hook).
    The step times count anyway."""
    table = {row.key: row for row in rows}
    for sums in timings:
        if sums.step_count <= 0:
            continue
        key = (gpu_type, sums.nodes, sums.replicas, sums.atomic_batch)
        old = table.get(key)
        weight = float(sums.step_count)
        grad = sums.accum_sum / sums.accum_count if sums.accum_count > 0 else 0.0
        step = sums.step_sum / sums.step_count
        if old is not None:
            past = min(old.weight, MAX_WEIGHT)
            if grad > 0 and old.grad_time > 0:
                grad = (past * old.grad_time + weight * grad) / (past + weight)
            else:
                grad = grad or old.grad_time
            step = (past * old.step_time + weight * step) / (past + weight)
            weight += past
        table[key] = ProfileRow(*key[1:], grad, step, weight, gpu_type)
    return tuple(table[key] for key in sorted(table))


def throughput(sums: TimingSums) -> float:
    """Examples per second of one window. Without accumulation `accum_sum` is part of `step_sum`."""
    spent = sums.step_sum + (sums.accum_sum if sums.accum_steps > 0 else 0.0)
    examples = sums.step_count * sums.replicas * sums.atomic_batch * (sums.accum_steps + 1)
    return examples / spent if spent > 0 else 0.0


def add_mark(marks: tuple[Mark, ...], event: Profiled, *, working: bool) -> tuple[Mark, ...]:
    """The marks with the progress of a report. `working`: the attempt has done its first step. All
    but the newest are at least WINDOW apart."""
    if event.progress is None or not working:
        return marks
    mark = Mark(event.at, event.progress.base_steps)
    if len(marks) > 1 and marks[-1].at - marks[-2].at < WINDOW:
        marks = marks[:-1]
    return (*marks, mark)[-3:]


def progress_speed(marks: tuple[Mark, ...]) -> float | None:
    """Steps at the base batch size per second. None: not measured for long enough."""
    if len(marks) < 2:
        return None
    seconds = marks[-1].at - marks[0].at
    if seconds < LEAST_WINDOW:
        return None
    return max(marks[-1].base_steps - marks[0].base_steps, 0.0) / seconds


def begin_gain(job: Job, event: Launched) -> tuple[Gain, ...]:
    """The gains of `job` with the resize that this launch begins, if it is one whose goodput was
    promised. `job` is as it was before the launch."""
    if event.promise is None:
        return job.gains
    gain = Gain(
        event.at,
        event.attempt,
        job.last_replicas,
        event.placement.replicas,
        event.promise,
        progress_speed(job.marks),
    )
    return (*job.gains, gain)[-MOST_GAINS:]


def measure_gain(job: Job, now: Seconds) -> tuple[Gain, ...]:
    """The gains with the speed of this attempt, up to SETTLING after its launch: the batch size
    follows a resize in steps."""
    for latest in job.gains[-1:]:
        if latest.attempt == job.attempt and now - latest.at <= SETTLING:
            return (*job.gains[:-1], replace(latest, speed_after=progress_speed(job.marks)))
    return job.gains
