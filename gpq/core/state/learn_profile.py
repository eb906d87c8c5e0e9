"""Reports of the training process -> the job's profile: what was measured, the newest weighing
most."""

from __future__ import annotations

import math
from dataclasses import replace

from gpq.core.freedoms.habits import joined, unmended, with_habits, without_accepted
from gpq.core.goodput.noise_curve import recorded
from gpq.core.goodput.refit import foreseen
from gpq.core.model.accounts import Account
from gpq.core.model.events import Profiled, TimingSums
from gpq.core.model.jobs import Job, JobSpec
from gpq.core.model.profile import Declared, LossPoint, Noise, NoisePoint, Profile, ProfileRow
from gpq.core.model.units import Seconds
from gpq.core.state.stragglers import describe, judged, stragglers

# Steps beyond this many count for no more, so that a row follows a machine that changed (pollux.md
# 1.15.9).
MAX_WEIGHT = 500.0
MAX_LOSSES = 64  # points kept of a loss curve: they are written with every report of the job
MAX_NOTICES = 12
# share by which a mean may move before the model is made anew: it errs by more itself
TIME_TOLERANCE = 0.03
NOISE_TOLERANCE = 0.05  # share of the noise scale
WEIGHT_TOLERANCE = 2.0  # times as many steps
WELL_KNOWN = 30.0  # steps from which on a weight says no more


def learn(job: Job, event: Profiled) -> Job:
    """The job with one report taken in. The caller has checked attempt and offset."""
    profile = job.profile
    declared = with_overrides(event.declared, job.spec) if event.declared else None
    retuned = event.retuned
    profile = replace(
        with_habits(
            profile,
            unmended(
                joined(profile.habits, without_accepted(event.habits, job.spec.accept)),
                event.progress,
            ),
            declared,
        ),
        rows=merge(profile.rows, event.timings, job.placement.gpu_type if job.placement else ""),
        noise=event.noise or profile.noise,
        early_noise=profile.early_noise
        or (event.noise if event.noise and is_usable(event.noise) else None),
        noise_curve=_with_noise(profile, event),
        progress=event.progress or profile.progress,
        atomic_batch=retuned.atomic_batch if retuned else profile.atomic_batch,
        accum_steps=retuned.accum_steps if retuned else profile.accum_steps,
        order_seq=retuned.seq if retuned else profile.order_seq,
        batch_changes=profile.batch_changes + (1 if retuned and _is_live_change(job, event) else 0),
        samples_per_second=throughput(event.timings[-1])
        if event.timings
        else profile.samples_per_second,
        metrics=_merged_metrics(profile, event),
        diverged=_diverged(profile, event),
        ranks=judged(profile.ranks, event.ranks) if event.ranks else profile.ranks,
        losses=with_losses(profile.losses, event.losses),
        checkpoints=profile.checkpoints + (1 if event.checkpoint_seconds is not None else 0),
        checkpoint_seconds=(
            event.checkpoint_seconds
            if event.checkpoint_seconds is not None
            else profile.checkpoint_seconds
        ),
        checkpoint_bytes=event.checkpoint_bytes or profile.checkpoint_bytes,
    )
    profile = rested(profile)
    restart, took = job.restart_seconds, restart_took(job, event)
    if took is not None:
        restart = took if restart is None else 0.5 * (restart + took)
    notices = job.notices
    later = replace(job, profile=profile)
    slow = (
        [describe(later, rank) for rank in stragglers(later) if rank not in stragglers(job)]
        if event.ranks
        else []
    )
    for line in (*event.notices, *slow):
        notices = notices if notices and notices[-1] == line else (*notices, line)[-MAX_NOTICES:]
    return replace(
        job,
        profile=profile,
        report_offset=event.offset,
        account=bookkept(job, event),
        restart_seconds=restart,
        stop_seconds=None if event.ready else job.stop_seconds,
        notices=notices,
    )


def restart_took(job: Job, event: Profiled) -> Seconds | None:
    """Of the restart that this report ends: the stop, then the launch to the first step. None: it
    ends none."""
    if not event.ready or job.stop_seconds is None or job.launched_at is None:
        return None
    return job.stop_seconds + max(event.at - job.launched_at - job.staged_seconds, 0.0)


def bookkept(job: Job, event: Profiled) -> Account:
    """With the time of the attempt's first step."""
    first = event.ready and job.account.working_at is None
    return replace(job.account, working_at=event.at) if first else job.account


def rested(profile: Profile) -> Profile:
    """The profile with its model's basis brought up to date, where that is called for: a new
    configuration, a time that moved by TIME_TOLERANCE, a weight that tells more. So that steady
    reports do not ask for a new fit each."""
    rows = profile.model_rows if _rows_alike(profile.model_rows, profile.rows) else profile.rows
    noise = (
        profile.model_noise if _noise_alike(profile.model_noise, profile.noise) else profile.noise
    )
    if rows is profile.model_rows and noise is profile.model_noise:
        return profile
    return replace(profile, model_rows=rows, model_noise=noise)


def _rows_alike(old: tuple[ProfileRow, ...], new: tuple[ProfileRow, ...]) -> bool:
    if old is new:
        return True
    rows_by_key = {_key(row): row for row in old}
    new_rows = [
        row
        for row in new
        if (previous := rows_by_key.get(_key(row))) is None or not _row_alike(previous, row)
    ]
    return len(old) <= len(new) and (not new_rows or foreseen(old, new_rows))


def _key(row: ProfileRow) -> tuple[str, int, int, int]:
    return row.gpu_type, row.nodes, row.replicas, row.atomic_batch


def _row_alike(old: ProfileRow, new: ProfileRow) -> bool:
    return old is new or (
        abs(new.step_time - old.step_time) <= TIME_TOLERANCE * old.step_time
        and abs(new.grad_time - old.grad_time) <= TIME_TOLERANCE * old.grad_time
        and (
            min(old.weight, new.weight) >= WELL_KNOWN or new.weight <= WEIGHT_TOLERANCE * old.weight
        )
    )


def _noise_alike(old: Noise | None, new: Noise | None) -> bool:
    """Only the noise scale, var / sqr, counts."""
    if old is None or new is None or min(old.samples, new.samples) <= 0:
        return old is new
    before, after = old.var * new.sqr, new.var * old.sqr
    return abs(after - before) <= NOISE_TOLERANCE * abs(before) and (old.sqr > 0) == (new.sqr > 0)


def _is_live_change(job: Job, event: Profiled) -> bool:
    """A batch that changed under a running attempt; the first batch of an attempt is no change."""
    order = event.retuned
    return (
        order is not None
        and order.seq > 0
        and job.profile.atomic_batch > 0
        and (
            (order.atomic_batch, order.accum_steps)
            != (job.profile.atomic_batch, job.profile.accum_steps)
        )
    )


def _merged_metrics(profile: Profile, event: Profiled) -> tuple[tuple[str, float], ...]:
    if not event.metrics:
        return profile.metrics
    return tuple(sorted({**dict(profile.metrics), **dict(event.metrics)}.items()))


def _diverged(profile: Profile, event: Profiled) -> tuple[tuple[str, Seconds], ...]:
    """Names of metrics that are not finite, and since when."""
    if not event.metrics:
        return profile.diverged
    since = dict(profile.diverged)
    for name, value in event.metrics:
        if math.isfinite(value):
            since.pop(name, None)
        else:
            since.setdefault(name, event.at)
    return tuple(sorted(since.items()))


def is_usable(noise: Noise) -> bool:
    """Does it tell the noise scale, not only a bound of it?"""
    return noise.samples > 0 and noise.sqr > 0 and noise.var > 0 and not noise.capped


def _with_noise(profile: Profile, event: Profiled) -> tuple[NoisePoint, ...]:
    """The curve with what the report says of the noise scale, where it also says how far the job
    is."""
    if event.noise is None or event.progress is None or not is_usable(event.noise):
        return profile.noise_curve
    return recorded(profile.noise_curve, event.progress.base_steps, event.noise)


def with_losses(curve: tuple[LossPoint, ...], new: tuple[LossPoint, ...]) -> tuple[LossPoint, ...]:
    """The curve with `new` at its end, at most MAX_LOSSES points. Where it is full, the two
    neighbours that stand for the fewest reports become one, so that all points come to stand for
    about equally many.

    Progress that went back (an attempt went on from an earlier checkpoint) takes back what came
    after.
    """
    if not new:
        return curve
    points = list(curve)
    for point in new:
        while points and points[-1].base_steps >= point.base_steps:
            points.pop()
        points.append(point)
        if len(points) > MAX_LOSSES:
            at = min(range(len(points) - 1), key=lambda i: points[i].weight + points[i + 1].weight)
            points[at : at + 2] = [_joined(points[at], points[at + 1])]
    return tuple(points)


def _joined(first: LossPoint, second: LossPoint) -> LossPoint:
    weight = first.weight + second.weight
    at = (first.base_steps * first.weight + second.base_steps * second.weight) / weight
    loss = (first.loss * first.weight + second.loss * second.weight) / weight
    # short numbers: it is written with every report
    return LossPoint(round(at, 1), float(f"{loss:.6g}"), weight)


def with_overrides(declared: Declared, spec: JobSpec) -> Declared:
    """What the script declared, with what the user said at submit on top."""
    return replace(
        declared,
        batch_size=spec.batch_size or declared.batch_size,
        max_batch_size=spec.max_batch_size or declared.max_batch_size,
        min_atomic_batch=spec.min_atomic_batch or declared.min_atomic_batch,
        max_atomic_batch=spec.max_atomic_batch or declared.max_atomic_batch,
    )


def merge(
    rows: tuple[ProfileRow, ...], timings: tuple[TimingSums, ...], gpu_type: str = ""
) -> tuple[ProfileRow, ...]:
    """Rows with new sums mixed in, sorted by (type, nodes, replicas, atomic batch). `grad_time` is
    0 while none was measured (a GPU without accumulation, a model with a communication hook of its
    own): the step times count all the same."""
    table = {(row.gpu_type, row.nodes, row.replicas, row.atomic_batch): row for row in rows}
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
    """Examples a second of one window. Without accumulation `accum_sum` is a part of `step_sum`,
    not beside it."""
    spent = sums.step_sum + (sums.accum_sum if sums.accum_steps > 0 else 0.0)
    examples = sums.step_count * sums.replicas * sums.atomic_batch * (sums.accum_steps + 1)
    return examples / spent if spent > 0 else 0.0
