"""Sia (SOSP'23): normalised goodput over a few shapes of every GPU type, chosen by an integer
programme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpq.core.feasibility.shapes import shape_now
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Allotment, Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.lab.policies.packing import pack
from gpq.policies.shared.eligible import configurations, contest, priority_weight
from gpq.policies.shared.knapsack import item, solve
from gpq.policies.shared.type_transfer import inform

Row = list[tuple[Shape, float]]  # shapes of a job and their costs
POWER = -0.5  # p of the normalised goodput. -infinity would be max-min, 1 the plain sum
IDLE_COST = 1.1  # lambda_n of a job without GPUs. Above 1, the cost of the least useful shape
MOST_COST = 3000.0
STAY = 1e-3  # less than the rounding of costs, so that of equal shapes the present one wins
GROWTH = 2  # at most this many times the profiled replicas
REPAIRS = 12  # how often shapes without room are withdrawn
GAP = 1e-4  # relative gap at which the search may end (Sia's artifact)
# A limit of time would make the answer depend on the machine's load: the search tree is bounded by
# its nodes instead.
NODE_LIMIT = 5000


class Sia(Policy):
    """Minimises the sum over jobs of G(shape)^p, or lambda_n for a job without GPUs. G is goodput
    relative to that of the job's slowest shape. Every shape but the present one is multiplied by
    the restart factor."""

    name = "sia"
    sentence = "Sia (SOSP'23): an integer programme over GPU types, by normalised goodput"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        snapshot = inform(snapshot)
        round_ = contest(snapshot)
        possible = configurations(snapshot, round_)
        rows = {job.id: _row(job, snapshot, possible[job.id]) for job in round_.jobs}
        allotments: dict[JobId, Allotment] = {}
        weights = [priority_weight(job) for job in round_.jobs]
        idle = [IDLE_COST * weight for weight in weights]
        for _ in range(REPAIRS):
            options = [
                [Option(shape.gpu_type, shape.replicas, weight * cost) for shape, cost in row]
                for row, weight in zip(rows.values(), weights, strict=True)
            ]
            positions = cheapest(options, idle, round_.capacity)
            choices = {
                name: rows[name][position][0]
                for name, position in zip(rows, positions, strict=True)
                if position is not None
            }
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


def _row(job: Job, snapshot: Snapshot, possible: Sequence[Shape]) -> Row:
    """The cost of each shape within the growth cap. While nothing is known, only minimum shapes,
    all types alike."""
    current_shape = shape_now(job, snapshot)
    shapes = _shapes(job, possible, current_shape)
    factor = restart_factor(job, snapshot)
    row = []
    table, least = estimates.table(job, shapes), job.spec.min_gpus
    # G: goodput relative to the least of them, times the minimum number of GPUs
    if table is None or not table.goodput.any():
        gains = [
            float(least) if shape.replicas == least or shape == current_shape else 0.0
            for shape in shapes
        ]
    else:
        speeds = table.goodput.tolist()
        unit = min(speed for speed in speeds if speed > 0)
        gains = [least * speed / unit for speed in speeds]
    for shape, gain in zip(shapes, gains, strict=True):
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
        and current_shape not in shapes
        and current_shape.replicas == job.replicas
    ):
        shapes.append(current_shape)  # on devices that no longer count as usable
    return shapes


def restart_factor(job: Job, snapshot: Snapshot) -> float:
    """r = (T - N S) / (T + S) for age T, N restarts so far and S seconds each. 1 while T < S."""
    cost = snapshot.config.restart_cost(job)
    age = snapshot.now - job.submitted_at
    if age < cost or age + cost <= 0:
        return 1.0
    return max(age - job.restarts * cost, 0.0) / (age + cost)


@dataclass(frozen=True, slots=True)
class Option:
    """This many devices of one type at a cost."""

    gpu_type: str
    size: int
    cost: float


def cheapest(
    rows: Sequence[Sequence[Option]], idle: Sequence[float], capacity: Mapping[str, int]
) -> list[int | None]:
    """min sum_j (cost of j's option, or idle_j), with the sizes of each type within `capacity`,
    exact or within `GAP` of it. Returns the position of each job's option.

    One type: dynamic programme. Several: integer programme (HiGHS), without options that another
    one of the type beats with no more devices.
    """
    useful_options = [
        _undominated_options(row, bound) for row, bound in zip(rows, idle, strict=True)
    ]
    types = sorted(
        {
            row[i].gpu_type
            for row, positions in zip(rows, useful_options, strict=True)
            for i in positions
        }
    )
    if not types:
        return [None] * len(rows)
    if len(types) == 1:
        items = [
            item([(0, 0.0), *((row[i].size, bound - row[i].cost) for i in positions)])
            for row, positions, bound in zip(rows, useful_options, idle, strict=True)
        ]
        answer = solve(items, [capacity.get(types[0], 0)], exact=True)
        assert answer is not None  # choosing nothing always fits
        return [
            positions[at - 1] if at else None
            for positions, at in zip(useful_options, answer.choice, strict=True)
        ]
    return _integer_programme(rows, useful_options, idle, types, capacity)


def _undominated_options(row: Sequence[Option], idle: float) -> list[int]:
    """Options that are cheaper than none, and cheaper than every other one of their type that is no
    larger. The first wins a tie."""
    best: dict[str, float] = {}
    positions = []
    for i in sorted(range(len(row)), key=lambda i: (row[i].size, row[i].cost, i)):
        if row[i].cost < min(idle, best.get(row[i].gpu_type, np.inf)):
            best[row[i].gpu_type] = row[i].cost
            positions.append(i)
    return sorted(positions)


def _integer_programme(
    rows: Sequence[Sequence[Option]],
    useful_options: Sequence[Sequence[int]],
    idle: Sequence[float],
    types: Sequence[str],
    capacity: Mapping[str, int],
) -> list[int | None]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    columns = [(j, i) for j, positions in enumerate(useful_options) for i in positions]
    cost = np.array([rows[j][i].cost - idle[j] for j, i in columns])
    # lines: one option of each job, then the devices of each type
    lines = [j for j, _ in columns]
    lines += [len(rows) + types.index(rows[j][i].gpu_type) for j, i in columns]
    entries = [1.0] * len(columns) + [float(rows[j][i].size) for j, i in columns]
    matrix = csr_array(
        (entries, (lines, [*range(len(columns)), *range(len(columns))])),
        shape=(len(rows) + len(types), len(columns)),
    )
    most = np.array([1.0] * len(rows) + [float(capacity.get(name, 0)) for name in types])
    result = milp(
        cost,
        integrality=np.ones(len(columns), dtype=np.int64),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix, -np.inf, most),
        options={"mip_rel_gap": GAP, "node_limit": NODE_LIMIT},
    )
    if result.x is None:
        raise ArithmeticError(
            f"the assignment has no solution, though nothing at all would be one: {result.message}"
        )
    choice: list[int | None] = [None] * len(rows)
    for (j, i), value in zip(columns, result.x.tolist(), strict=True):
        if value > 0.5:
            choice[j] = i
    return choice
