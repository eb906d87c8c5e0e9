"""The correction: right at measured shapes, silent where nothing is known, smooth in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpq.core.goodput import goodput as gp
from gpq.core.goodput.residuals import NONE, correction
from gpq.core.model.profile import ProfileRow
from tests.support.builders import PARAMS


def rows(*shapes: tuple[int, int], slower: float = 1.0, weight: float = 10_000.0) -> tuple[ProfileRow, ...]:
    """As the model says, times `slower`."""
    return tuple(
        ProfileRow(n, k, m, float(gp.grad_time(PARAMS, m)), slower * float(gp.step_time(PARAMS, n, k, m)), weight)
        for n, k in shapes
        for m in (16, 64)
    )


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
