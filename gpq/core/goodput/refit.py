"""Did a model predict what was measured since it was fitted? Then it needs no new fit: only
surprises teach."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpq.core.goodput import models
from gpq.core.model.profile import ProfileRow

TOLERANCE = 0.05  # relative error of step and gradient times, as of a model with much data
FEW = 4  # a model based on this many rows is fitted again after every other row
# predicted rows, relative to the rows of the fit, beyond which a new fit is worth it anyway
SHARE = 0.5


def foreseen(basis: Sequence[ProfileRow], rows: Sequence[ProfileRow]) -> bool:
    """Does the model of `basis` give the times of `rows`, each within TOLERANCE, if it has seen
    similar ones: the type of GPU, several replicas, several servers?"""
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
    """What no row shows is optimistic (`fitting`), so neither that nor anything beyond it is
    predicted."""
    return (basis_row.nodes > 1) == (row.nodes > 1) and (basis_row.replicas > 1) == (
        row.replicas > 1
    )


def _near(predicted: float, measured: float) -> bool:
    return min(predicted, measured) > 0 and abs(math.log(predicted / measured)) <= TOLERANCE
