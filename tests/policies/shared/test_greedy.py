"""One more GPU for the job that gains most: compared with trying all counts. Every result can be placed."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from gpq.core.model.jobs import DesiredState, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.lab.policies.greedy import counts, layouts
from gpq.lab.policies.sizing import entrants
from tests.support.builders import black_box, job, node, on, running, snapshot, spec


def named(here: Snapshot, found: dict[int, int]) -> dict[int, list[tuple[str, int]]]:
    round_ = entrants(here)
    laid = layouts(here, round_.contenders, {JobId(name): count for name, count in found.items()}, round_.fixed_shapes)
    assert set(place(here, {**round_.fixed_shapes, **laid})) == {*round_.fixed_shapes, *laid}
    return {int(name): list(layout.parts) for name, layout in laid.items()}


def _gain(row: NDArray[np.float64], count: int) -> float:
    return float(row[count - 1])


def test_greedy_counts_are_the_best_for_shrinking_gains() -> None:
    luck = np.random.default_rng(4)
    for _ in range(20):
        gains = np.sort(luck.random((3, 6)), axis=1)[:, ::-1] - 0.3  # of the second GPU, the third and so on
        here = snapshot(node("a", 4), node("b", 3), *(running(i, on("a", i - 1)) for i in (1, 2, 3)))
        round_ = entrants(here)
        found = counts(round_.contenders, {JobId(i): partial(_gain, gains[i - 1]) for i in (1, 2, 3)})
        worth = {
            sizes: sum(gains[i, : size - 1].sum() for i, size in enumerate(sizes))
            for sizes in product(range(1, 8), repeat=3)
            if sum(sizes) <= 7
        }
        assert worth[tuple(found[JobId(i)] for i in (1, 2, 3))] == pytest.approx(max(worth.values()))


def test_without_room_for_all_the_first_jobs_get_their_minimum() -> None:
    here = snapshot(node("a", 3), *(job(i, at=float(i), spec_=spec(gpus=2 if i == 2 else 1)) for i in (1, 2, 3)))
    round_ = entrants(here)
    assert counts(round_.contenders, {JobId(i): lambda k: 1.0 for i in (1, 2, 3)}) == {1: 1, 2: 2}


def test_jobs_that_keep_their_count_stay_and_others_take_the_emptiest_servers() -> None:
    here = snapshot(node("a", 4), node("b", 4), running(1, on("a", 0, 1, 2)), running(2, on("b", 0)))
    assert named(here, {1: 3, 2: 4}) == {1: [("a", 3)], 2: [("b", 4)]}
    assert named(here, {1: 3, 2: 5}) == {1: [("a", 3)], 2: [("a", 1), ("b", 4)]}


def test_a_command_gets_one_server_even_if_others_must_move() -> None:
    apart = (running(2, on("a", 0)), running(3, on("b", 0)))
    here = snapshot(node("a", 2), node("b", 2), job(1, spec_=black_box(2)), *apart)
    assert named(here, {1: 2, 2: 1, 3: 1}) == {1: [("a", 2)], 2: [("b", 1)], 3: [("b", 1)]}
    fixed = snapshot(
        node("a", 2),
        node("b", 2),
        job(1, spec_=black_box(2)),
        *(running(i, on(name, 0), spec_=black_box()) for i, name in ((2, "a"), (3, "b"))),
    )
    assert named(fixed, {1: 2}) == {}


def test_a_job_stays_on_its_type_and_a_new_job_takes_the_type_with_most_free() -> None:
    here = snapshot(
        node("a", 4, type="A100"),
        node("b", 3, type="T4"),
        running(1, on("a", 0, 1)),
        job(2, at=1.0),
        job(3, at=2.0, spec_=spec(gpu_type="a1")),
        job(4, at=3.0),
    )
    homes = {int(c.job.id): c.gpu_type for c in entrants(here).contenders}
    assert homes == {1: "A100", 2: "T4", 3: "A100", 4: "T4"}


def test_fixed_jobs_stay_and_impossible_jobs_are_left_out() -> None:
    here = snapshot(
        node("a", 4),
        running(1, on("a", 0), spec_=black_box()),
        running(2, on("a", 1), wish=DesiredState.CANCEL),
        job(3, spec_=spec(gpus=9)),
        job(4, not_before=50.0),
        job(5, state=JobState.HELD),
        job(6, spec_=spec(priority=3)),
        job(7),
    )
    round_ = entrants(here)
    assert sorted(round_.fixed_shapes) == [1, 2]
    assert [int(c.job.id) for c in round_.contenders] == [6, 7]
