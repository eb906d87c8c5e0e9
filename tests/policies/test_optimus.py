"""Optimus: the next GPU goes to the job that it brings nearest to its end, by an oracle or by measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gpq.core.model.placements import Layout, Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import LossPoint, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.lab.policies.greedy import Optimus, remaining_steps, step_seconds
from gpq.lab.policies.sizing import entrants
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot


@dataclass(frozen=True, slots=True)
class Known:
    """An oracle with a formula."""

    remaining_steps: float
    seconds: Callable[[Shape], Seconds | None]

    def step_seconds(self, shape: Shape) -> Seconds | None:
        return self.seconds(shape)


def shared(shape: Shape) -> float:
    return 1.0 / shape.replicas


def counts(here: Snapshot) -> dict[int, int]:
    return {int(name): shape_of(allotment).replicas for name, allotment in Optimus().allocate(here).items()}


def test_the_longer_job_gets_more_and_every_job_at_least_one() -> None:
    here = snapshot(node("a", 8), *(running(i, on("a", i - 1)) for i in (1, 2)), running(3, on("a", 2)))
    known = {JobId(1): Known(900.0, shared), JobId(2): Known(100.0, shared), JobId(3): Known(0.0, shared)}
    # 900/k(k+1) and 100/k(k+1): the eighth GPU is the short job's second, which is worth 50. It would be the long job's
    # sixth, which is worth 30.
    assert counts(replace(here, oracles=known)) == {1: 5, 2: 2, 3: 1}


def test_it_stops_when_no_job_gains_or_can_run() -> None:
    here = snapshot(node("a", 8), running(1, on("a", 0)), running(2, on("a", 1)))
    slower = Known(100.0, lambda shape: 1.0 if shape.replicas < 3 else 2.0)
    cannot = Known(100.0, lambda shape: 1.0 / shape.replicas if shape.replicas <= 4 else None)
    assert counts(replace(here, oracles={JobId(1): slower, JobId(2): cannot})) == {1: 1, 2: 4}


def test_without_an_oracle_it_uses_modelled_times_and_declared_lengths() -> None:
    rows = tuple(
        ProfileRow(1, k, m, 0.001 * m, 0.001 * m + 0.001 * (k > 1), 100.0) for k in (1, 2, 4) for m in (16, 32, 64)
    )
    near, far = (Progress(9, 10, 0, 0, 0.0, done) for done in (0.9, 0.1))
    here = snapshot(
        node("a", 8),
        running(1, on("a", 0), profile=Profile(DECLARED, rows, progress=near)),
        running(2, on("a", 1), profile=Profile(DECLARED, rows, progress=far)),
    )
    found = counts(here)
    assert found[2] > found[1] >= 1
    assert remaining_steps(here.jobs[JobId(2)], None) == pytest.approx(0.9 * 10 * 10_000 / 64)
    seconds = step_seconds(entrants(here).contenders[0], None)
    assert seconds(1) == pytest.approx(0.064, rel=0.1)
    assert seconds(9) is None  # more than the cluster has


def test_without_a_declared_length_the_loss_curve_predicts_the_rest() -> None:
    open_end = replace(DECLARED, epochs=0)
    falling = tuple(LossPoint(float(k), 1.0 / (0.001 * k + 0.5)) for k in range(0, 800, 20))
    steady = tuple(LossPoint(float(k), 1.0 / (0.1 * k + 0.5)) for k in range(0, 4000, 100))
    left = [
        remaining_steps(running(1, on("a", 0), profile=Profile(open_end, losses=losses)), None)
        for losses in (falling, steady)
    ]
    assert left[0] > 100.0
    assert left[1] == 0.0
    assert remaining_steps(running(1, on("a", 0), profile=Profile(open_end)), None) == 1.0


def test_jobs_that_keep_their_count_keep_their_servers_and_commands_stay() -> None:
    here = snapshot(
        node("a", 4),
        node("b", 4),
        running(1, on("a", 0), spec_=black_box()),
        running(2, on("b", 0, 1)),
        job(3, at=5.0, spec_=black_box(3)),
    )
    plan = Optimus().allocate(replace(here, oracles={JobId(2): Known(1.0, lambda s: 2.0 if s.replicas < 2 else 1.0)}))
    assert plan == {
        JobId(1): Shape(1),
        JobId(2): Layout(((node("b").id, 2),)),
        JobId(3): Layout(((node("a").id, 3),)),
    }
