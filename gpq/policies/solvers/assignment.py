"""The cheapest assignment: one option of each job or none, within the devices of every type. Exact,
or within 1e-4 of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpq.policies.solvers.knapsack import item, solve

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GAP = 1e-4  # relative gap at which the search may end (Sia's artifact)
# A limit of time would make the answer depend on the machine's load: the search tree is bounded by
# its nodes instead.
NODE_LIMIT = 5000


@dataclass(frozen=True, slots=True)
class Option:
    """This many devices of one type at a cost."""

    gpu_type: str
    size: int
    cost: float


def cheapest(
    rows: Sequence[Sequence[Option]], idle: Sequence[float], capacity: Mapping[str, int]
) -> list[int | None]:
    """min sum_j (cost of j's option, or idle_j), with the sizes of each type within `capacity`.
    Returns the position of each job's option.

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
        return _knapsack(rows, useful_options, idle, capacity.get(types[0], 0))
    return _integer_programme(rows, useful_options, idle, types, capacity)


def _knapsack(
    rows: Sequence[Sequence[Option]],
    useful_options: Sequence[Sequence[int]],
    idle: Sequence[float],
    capacity: int,
) -> list[int | None]:
    items = [
        item([(0, 0.0), *((row[i].size, bound - row[i].cost) for i in positions)])
        for row, positions, bound in zip(rows, useful_options, idle, strict=True)
    ]
    answer = solve(items, [capacity], exact=True)
    assert answer is not None  # choosing nothing always fits
    return [
        positions[at - 1] if at else None
        for positions, at in zip(useful_options, answer.choice, strict=True)
    ]


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

    columns = [(j, i) for j, positions in enumerate(useful_options) for i in positions]
    cost = np.array([rows[j][i].cost - idle[j] for j, i in columns])
    matrix = _matrix(rows, columns, types)
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


def _matrix(
    rows: Sequence[Sequence[Option]], columns: Sequence[tuple[int, int]], types: Sequence[str]
) -> csr_array:
    """Lines: one option of each job, then the devices of each type. `columns`: (row, option)."""
    from scipy.sparse import csr_array

    lines = [j for j, _ in columns]
    lines += [len(rows) + types.index(rows[j][i].gpu_type) for j, i in columns]
    entries = [1.0] * len(columns) + [float(rows[j][i].size) for j, i in columns]
    return csr_array(
        (entries, (lines, [*range(len(columns)), *range(len(columns))])),
        shape=(len(rows) + len(types), len(columns)),
    )
