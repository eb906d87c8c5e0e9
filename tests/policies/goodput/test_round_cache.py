"""A policy's memory answers as estimates.table does, and makes a new table only for what changed."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.goodput import estimates
from gpq.core.goodput.batches import GoodputTable
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.units import JobId
from gpq.policies.goodput.forecast import RoundCache
from tests.policies.goodput.test_goodput import GOOD, POOR, profile
from tests.support.builders import job

SHAPES = (Shape(1), Shape(2), Shape(4))


def table(memory: RoundCache, job: Job, shapes: tuple[Shape, ...]) -> GoodputTable | None:
    return memory.tables([(job, shapes)])[job.id]


def test_equal_questions_have_equal_answers_and_a_new_profile_a_new_one() -> None:
    memory, mine = RoundCache(), job(1, profile=profile(GOOD))
    first = table(memory, mine, SHAPES)
    assert first is not None
    expected = estimates.table(mine, SHAPES)
    assert expected is not None
    assert first.goodput.tolist() == expected.goodput.tolist()
    assert table(memory, replace(mine, service=5.0), SHAPES) is first
    assert table(memory, mine, SHAPES[:2]) is not first
    changed = table(memory, replace(mine, profile=profile(POOR)), SHAPES)
    assert changed is not None
    assert changed.goodput.tolist() != first.goodput.tolist()


def test_jobs_that_have_gone_are_forgotten() -> None:
    memory, mine = RoundCache(), job(1, profile=profile(GOOD))
    first = table(memory, mine, SHAPES)
    memory.forget_others({JobId(1)})
    assert table(memory, mine, SHAPES) is first
    memory.forget_others({JobId(2)})
    estimates._goodput_tables.clear()
    assert table(memory, mine, SHAPES) is not first
