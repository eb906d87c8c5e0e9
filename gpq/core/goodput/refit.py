"""Did a model foresee what was measured since it was made? Then it need not be made anew: it is the
surprise that teaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpq.core.goodput import models
from gpq.core.model.profile import ProfileRow

TOLERANCE = 0.05  # relative, of step and gradient times: what a model errs by that has seen much
FEW = 4  # rows on which a model rests that is made anew with every other one
# rows that were foreseen, of those that it rests on, beyond which they are worth a new one all the
# same
SHARE = 0.5


def foreseen(basis: Sequence[ProfileRow], rows: Sequence[ProfileRow]) -> bool:
    """Does the model of `basis` give the times of `rows`, each within TOLERANCE, where it has seen
    the like: the type of GPU, several replicas, several nodes?"""
    if len(basis) < FEW or len(rows) > SHARE * len(basis):
        return False
    return all(_is_foreseen(tuple(basis), row) for row in rows)


def _is_foreseen(basis: tuple[ProfileRow, ...], row: ProfileRow) -> bool:
    type_rows = [basis_row for basis_row in basis if basis_row.gpu_type == row.gpu_type]
    if not any(_alike(basis_row, row) for basis_row in type_rows):
        return False
    predicted = models.times_at(basis, row)
    if predicted is None:
        return False
    grad, step = predicted
    return _near(step, row.step_time) and (row.grad_time <= 0 or _near(grad, row.grad_time))


def _alike(basis_row: ProfileRow, row: ProfileRow) -> bool:
    """What no row told of is optimistic (`fitting`): neither that nor what lies beyond is
    foreseen."""
    return (basis_row.nodes > 1) == (row.nodes > 1) and (basis_row.replicas > 1) == (
        row.replicas > 1
    )


def _near(predicted: float, measured: float) -> bool:
    return min(predicted, measured) > 0 and abs(math.log(predicted / measured)) <= TOLERANCE
