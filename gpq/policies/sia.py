"""Sia (SOSP'23): normalised goodput over a few shapes of every GPU type, chosen by an integer
programme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpq.core.feasibility.shapes import shape_now
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Allotment, Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import Contest, configurations, contest, priority_weight
from gpq.policies.shared.packing import pack
from gpq.policies.shared.type_transfer import inform
from gpq.policies.solvers.assignment import Option, cheapest

POWER = -0.5  # p of the normalised goodput. -infinity would be max-min, 1 the plain sum
IDLE_COST = 1.1  # lambda_n of a job without GPUs. Above 1, the cost of the least useful shape
MOST_COST = 3000.0
STAY = 1e-3  # less than the rounding of costs, so that of equal shapes the present one wins
GROWTH = 2  # at most this many times the profiled replicas
REPAIRS = 12  # how often shapes without room are withdrawn

Row = list[tuple[Shape, float]]  # shapes of a job and their costs


class Sia:
    """Minimises the sum over jobs of G(shape)^p, or lambda_n for a job without GPUs. G is goodput
    relative to that of the job's slowest shape. Every shape but the present one is multiplied by
    the restart factor."""

    name = "sia"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        snapshot = inform(snapshot)
        round_ = contest(snapshot)
        possible = configurations(snapshot, round_)
        rows = {job.id: _row(job, snapshot, possible[job.id]) for job in round_.jobs}
        allotments: dict[JobId, Allotment] = {}
        for _ in range(REPAIRS):
            choices = _choices(round_, rows)
            allotments = pack(snapshot, round_.fixed_shapes, choices)
            misfits = {name: shape for name, shape in choices.items() if name not in allotments}
            if not misfits:
                break
            worst = max(
                misfits,
                key=lambda name: (misfits[name].replicas, -snapshot.jobs[name].spec.priority, name),
            )
            rows[worst] = [(shape, cost) for shape, cost in rows[worst] if shape != misfits[worst]]
        return allotments


def _choices(round_: Contest, rows: Mapping[JobId, Row]) -> dict[JobId, Shape]:
    """The cheapest shapes. A job that gets none is left out."""
    weights = [priority_weight(job) for job in round_.jobs]
    options = [
        [Option(shape.gpu_type, shape.replicas, weight * cost) for shape, cost in rows[job.id]]
        for job, weight in zip(round_.jobs, weights, strict=True)
    ]
    positions = cheapest(options, [IDLE_COST * weight for weight in weights], round_.capacity)
    return {
        job.id: rows[job.id][position][0]
        for job, position in zip(round_.jobs, positions, strict=True)
        if position is not None
    }


def _row(job: Job, snapshot: Snapshot, possible: Sequence[Shape]) -> Row:
    """The cost of each shape within the growth cap. While nothing is known, only minimum shapes,
    all types alike."""
    current_shape = shape_now(job, snapshot)
    shapes = _shapes(job, possible, current_shape)
    factor = restart_factor(job, snapshot)
    row = []
    for shape, gain in zip(shapes, _gains(job, shapes, current_shape), strict=True):
        net_gain = gain
        if current_shape is not None and shape != current_shape:
            net_gain *= factor
        if net_gain > 0:
            cost = min(round(net_gain**POWER, 2), MOST_COST)
            if shape == current_shape:
                cost -= STAY
            row.append((shape, cost))
    return row


def _shapes(job: Job, possible: Sequence[Shape], current_shape: Shape | None) -> list[Shape]:
    """Shapes within the growth cap, and the present one."""
    least = most = job.spec.min_gpus
    # it starts with its minimum, even if more is known
    if job.attempt > 0 and job.spec.level is Level.SCRIPT:
        most = max(least, GROWTH * job.profile.max_replicas)
    shapes = [shape for shape in possible if shape.replicas <= most or shape == current_shape]
    if (
        current_shape is not None
        and job.placement is not None
        and current_shape not in shapes
        and current_shape.replicas == job.replicas
    ):
        shapes.append(current_shape)  # on devices that no longer count as usable
    return shapes


def _gains(job: Job, shapes: Sequence[Shape], current_shape: Shape | None) -> list[float]:
    """G: goodput relative to the least of them, times the minimum number of GPUs."""
    table, least = estimates.table(job, shapes), job.spec.min_gpus
    if table is None or not table.goodput.any():
        return [
            float(least) if shape.replicas == least or shape == current_shape else 0.0
            for shape in shapes
        ]
    speeds = table.goodput.tolist()
    unit = min(speed for speed in speeds if speed > 0)
    return [least * speed / unit for speed in speeds]


def restart_factor(job: Job, snapshot: Snapshot) -> float:
    """r = (T - N S) / (T + S) for age T, N restarts so far and S seconds each. 1 while T < S."""
    cost = snapshot.config.restart_cost(job)
    age = snapshot.now - job.submitted_at
    if age < cost or age + cost <= 0:
        return 1.0
    return max(age - job.restarts * cost, 0.0) / (age + cost)
