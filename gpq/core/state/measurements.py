"""Mixes new measurements into old ones: step times by configuration, and a curve of losses."""

from __future__ import annotations

from gpq.core.model.events import TimingSums
from gpq.core.model.profile import LossPoint, ProfileRow

# Steps beyond this many count for no more, so that a row follows a machine that changed (pollux.md
# 1.15.9).
MAX_WEIGHT = 500.0


MAX_LOSSES = 64  # points kept of a loss curve. They are written with every report of the job


def with_losses(curve: tuple[LossPoint, ...], new: tuple[LossPoint, ...]) -> tuple[LossPoint, ...]:
    """The curve with `new` at its end, at most MAX_LOSSES points. If it is full, the two neighbours
    with the fewest reports become one, so that all points have about equally many.

    If progress went back (an attempt resumed from an earlier checkpoint), the points after it are
    removed.
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
    """Examples per second of one window. Without accumulation `accum_sum` is part of `step_sum`."""
    spent = sums.step_sum + (sums.accum_sum if sums.accum_steps > 0 else 0.0)
    examples = sums.step_count * sums.replicas * sums.atomic_batch * (sums.accum_steps + 1)
    return examples / spent if spent > 0 else 0.0
