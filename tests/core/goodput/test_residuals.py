"""The correction: right at measured shapes, silent where nothing is known, smooth in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpq.core.goodput import goodput as gp
from gpq.core.goodput import models
from gpq.core.goodput.residuals import NONE, Correction, corrections
from gpq.core.model.profile import Profile, ProfileRow
from tests.support.builders import DECLARED, PARAMS


def rows(*shapes: tuple[int, int], slower: float = 1.0, weight: float = 10_000.0) -> tuple[ProfileRow, ...]:
    """As the model says, times `slower`."""
    return tuple(
        ProfileRow(n, k, m, float(gp.grad_time(PARAMS, m)), slower * float(gp.step_time(PARAMS, n, k, m)), weight)
        for n, k in shapes
        for m in (16, 64)
    )


def correction(rows: tuple[ProfileRow, ...], params: gp.ThroughputParams) -> Correction:
    return corrections([(rows, params)])[0]


def factors(found: object, *shapes: tuple[int, int]) -> list[float]:
    nodes, replicas = np.array(shapes).T
    return found.factor(nodes, replicas).tolist()  # type: ignore[attr-defined, no-any-return]


def test_a_correct_model_is_not_corrected() -> None:
    found = correction(rows((1, 1), (1, 4), (2, 8)), PARAMS)
    assert factors(found, (1, 1), (1, 2), (2, 8), (4, 16)) == pytest.approx([1.0] * 4)
    assert factors(NONE, (1, 1), (2, 8)) == [1.0, 1.0]


def test_the_measurement_counts_at_its_shape_and_partly_nearby() -> None:
    found = correction((*rows((1, 1)), *rows((1, 4), slower=1.2)), PARAMS)
    one, two, four, across = factors(found, (1, 1), (1, 2), (1, 4), (2, 4))
    assert one == pytest.approx(1.0, abs=0.01)
    assert four == pytest.approx(1.2, abs=0.01)
    assert 1.0 < two < 1.2
    assert across == 1.0, "across nodes is another matter"


def test_few_steps_say_little() -> None:
    sure = factors(correction(rows((1, 4), slower=1.2), PARAMS), (1, 4))[0]
    unsure = factors(correction(rows((1, 4), slower=1.2, weight=1.0), PARAMS), (1, 4))[0]
    assert 1.0 < unsure < sure
    nothing = tuple(replace(row, weight=0.0) for row in rows((1, 4), slower=1.2))
    assert correction(nothing, PARAMS) is NONE


# With these (servers, replicas, steps) the covariance was singular.
IMPOSSIBLE = [
    (0, 2, 1.0), (0, 0, 2.0), (2, 0, 2.0**53), (3, 2**53, 1.0), (0, 2**53, 2.0), (3, 3, 1.0), (3, 0, 1e300),
    (2**40, 0, 1e300), (0, 64, 5.0), (0, 3, 2.0), (1, 2, 2.0**53),
]  # fmt: skip


@pytest.mark.parametrize("weight", [None, float("inf"), 1e308])
def test_a_job_without_a_possible_model_costs_no_other_job_its_own(weight: float | None) -> None:
    odd = tuple(ProfileRow(n, k, 8, 0.1, 0.1, w if weight is None else weight) for n, k, w in IMPOSSIBLE)
    good = Profile(declared=DECLARED, rows=rows((1, 1), (1, 2)))
    bad = Profile(declared=DECLARED, rows=(*odd, *odd[-2:]))
    [alone] = models.models_of([(replace(good, rows=tuple(good.rows)), "")])
    beside, found = models.models_of([(good, ""), (bad, "")])
    assert alone is not None
    assert beside is not None
    assert beside.correction == alone.correction
    assert found is None or np.isfinite(found.correction.weights).all()
    assert (found is None) == models.is_beyond(bad)
    assert not models.is_beyond(good)
    assert not models.is_beyond(Profile(declared=DECLARED))
