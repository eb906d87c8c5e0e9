"""The time a job takes alone on a share: computed by hand from measurements whose every number is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.lab.measurements.ground_truth import Task
from gpq.lab.measurements.trace import Traces
from gpq.lab.simulator.outcomes import Alone, best_speeds
from gpq.lab.simulator.rules import parse_cluster
from tests.support.measurements import tiny


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task("a", 0.0, Traces(tiny(tmp_path)).application("tiny"), restart=30.0)


def test_throughput_is_that_of_the_best_batch_size_and_never_below_the_base(task: Task) -> None:
    speeds = best_speeds(task.truth, "", ((1,), (4,)))
    assert speeds.shape == (3, 2)
    assert speeds[0, 0] >= 1 / 0.084, "a base step of 32 examples takes 84 ms alone"
    assert (speeds[:, 1] > speeds[:, 0]).all()
    assert (speeds[2] >= speeds[0]).all(), "the noise scale grows, and with it what a larger batch is worth"


def test_a_whole_share_is_that_shape_and_half_a_gpu_is_one_gpu_half_the_time(task: Task) -> None:
    alone, work = Alone(parse_cluster("1x4")), 1000.0
    speeds = best_speeds(task.truth, "", ((1,), (2,), (3,), (4,)))
    four, one, half = alone.seconds(task, 1.0), alone.seconds(task, 4.0), alone.seconds(task, 8.0)
    assert four == pytest.approx(30.0 + sum(work / speeds[epoch, 3] for epoch in range(3)))
    assert one == pytest.approx(30.0 + sum(work / speeds[epoch, 0] for epoch in range(3)))
    assert half == pytest.approx(30.0 + 2 * (one - 30.0))


def test_a_rigid_job_gains_nothing_from_more_gpus_than_it_asked_for(task: Task) -> None:
    rigid = Task("b", 0.0, task.truth, replicas=2, rigid=True, restart=30.0)
    alone = Alone(parse_cluster("2x4"))
    assert alone.seconds(rigid, 1.0) == alone.seconds(rigid, 4.0)
    free = alone.seconds(task, 1.0)
    assert free is not None
    assert alone.seconds(rigid, 1.0) > free  # type: ignore[operator]


def test_with_several_types_the_mean_is_weighted_by_their_gpus(tmp_path: Path) -> None:
    truth = Traces(tiny(tmp_path, kinds=("aws", "dgx-ext"))).application("tiny")
    task = Task("a", 0.0, truth, restart=0.0)
    both = Alone(parse_cluster("1x4:t4,1x2:a100")).seconds(task, 1.0)
    four, two = Alone(parse_cluster("1x4:t4")).seconds(task, 1.0), Alone(parse_cluster("1x2:a100")).seconds(task, 1.0)
    assert four is not None
    assert two is not None
    assert both == pytest.approx((4 * four + 2 * two) / 6)
    assert (
        Alone(parse_cluster("1x4:t4,1x2:a100")).seconds(Task("a", 0.0, truth, gpu_type="a100", restart=0.0), 1.0) == two
    )
