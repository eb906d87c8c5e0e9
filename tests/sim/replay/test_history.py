"""A lab replays its own jobs: the measurements become the truth, and jobs that cannot be replayed are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput.estimates import goodput_of
from gpq.core.goodput.goodput import grad_time, step_time
from gpq.core.model.jobs import DesiredState, Job, JobState, Level
from gpq.core.model.nodes import Node
from gpq.core.model.placements import Shape
from gpq.core.model.profile import LossPoint, Noise, Profile, ProfileRow, Progress
from gpq.errors import Refused, UsageError
from gpq.lab import plan_runs
from gpq.lab.measurements.ground_truth import Task
from gpq.lab.simulator.history import FixedTruth, LearntTruth, history, nodes_of
from gpq.lab.simulator.replay import replay
from gpq.lab.simulator.rules import Rules, parse_cluster, with_types
from gpq.rpc.node_answers import DeviceView, NodeView
from tests.support.builders import DECLARED, PARAMS, black_box, job, on, running, spec

NOW = 100_000.0


def profile(fraction: float = 1.0, base_steps: float = 5000.0, **more: object) -> Profile:
    rows = tuple(
        ProfileRow(nodes, replicas, atomic, float(grad_time(PARAMS, atomic)),
                   float(step_time(PARAMS, nodes, replicas, atomic)), 100.0)
        for nodes, replicas in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (2, 8))
        for atomic in (16, 32, 64, 128)
    )  # fmt: skip
    fields: dict[str, object] = {
        "declared": DECLARED,
        "rows": rows,
        "noise": Noise(1.0, 640.0, 1000),
        "progress": Progress(1, 10, 0, 1, base_steps, fraction),
    }
    return Profile(**{**fields, **more})  # type: ignore[arg-type]


def ended(number: int, *, at: float = 0.0, **more: object) -> Job:
    fields: dict[str, object] = {
        "attempt": 1, "run_seconds": 600.0, "service": 1200.0, "last_replicas": 2, "ended_at": at + 700.0,
        "state": JobState.COMPLETED, "profile": profile(),
    }  # fmt: skip
    return job(number, at=at, **{**fields, **more})


def only(*jobs: Job) -> Task:
    found = history(jobs, NOW)
    assert not found.left_out
    [task] = found.tasks()
    return task


def test_an_adaptive_job_follows_its_fitted_model_and_its_noise() -> None:
    task = only(ended(1, restart_seconds=12.0))
    truth = task.truth
    assert isinstance(truth, LearntTruth)
    step, sync = truth.times((4, 4), 64)
    assert step == pytest.approx(float(step_time(PARAMS, 2, 8, 64)), rel=0.05)
    assert step - sync == pytest.approx(float(grad_time(PARAMS, 64)), rel=0.05)
    assert truth.stats(256, 0) == (1.0, pytest.approx(10.0))  # at a base batch size of 64
    assert truth.progress(truth.epochs) == 5000.0
    assert truth.iterations(64, 1) == pytest.approx(5000.0)
    assert truth.iterations(640 * 100, 1) < truth.iterations(640, 1) < 5000.0
    assert (task.restart, task.replicas, task.batch_size, task.rigid) == (12.0, 2, 64, False)


def test_an_unfinished_job_counts_with_its_progress_and_is_named() -> None:
    here = running(1, on("a", 0, 1), since=NOW - 500.0, profile=profile(0.25, 1000.0))
    over = ended(2, state=JobState.FAILED, profile=profile(0.25, 1000.0))
    found = history([here, over], NOW)
    assert [task.truth.progress(1) for task in found.tasks()] == [pytest.approx(1000.0)] * 2
    assert found.unended == ("1",)
    assert plan_runs.unended_line(found) == "not ended, so only the work so far counts: 1"


def test_time_held_by_the_user_is_not_waiting_time() -> None:
    jobs = [ended(1, at=100.0), ended(2, at=200.0)]
    found = history(jobs, NOW, hold_seconds={jobs[1].id: 5000.0})
    assert [(task.name, task.at) for task in found.tasks()] == [("1", 0.0), ("2", 5100.0)]


def test_gpus_keep_the_type_names_of_the_measurements() -> None:
    rows = tuple(replace(row, gpu_type="NVIDIA A100") for row in profile().rows)
    jobs = [ended(1, profile=profile(rows=rows)), ended(2, spec_=black_box(2), profile=Profile())]
    found = history(jobs, NOW, gpu_types={jobs[1].id: {"Tesla T4", ""}})
    assert found.gpu_types == ("NVIDIA A100", "Tesla T4")
    nodes = with_types(parse_cluster("1x2:a100,1x1:T4,1x1"), found.gpu_types)
    assert [node.devices[0].type for node in nodes] == ["NVIDIA A100", "Tesla T4", ""]
    with pytest.raises(UsageError, match="no job was measured on GPUs of type h100") as caught:
        with_types(parse_cluster("2x4:h100"), found.gpu_types)
    assert caught.value.hint == "there are measurements on NVIDIA A100, Tesla T4"
    with pytest.raises(UsageError, match="type a match several types"):
        with_types(parse_cluster("2x4:a"), found.gpu_types)
    with pytest.raises(UsageError, match="of type a100"):
        with_types(parse_cluster("2x4:a100"), ())


def test_the_loss_is_the_logged_one_and_never_grows() -> None:
    points = tuple(LossPoint(1000.0 * index, loss) for index, loss in enumerate((5.0, 3.0, 4.0, 1.0)))
    truth = only(ended(1, profile=profile(losses=points))).truth
    assert [truth.loss(64, step) for step in (0.0, 500.0, 1000.0, 2000.0, 3000.0)] == [1.0, 0.75, 0.5, 0.5, 0.0]
    assert only(ended(1)).truth.loss(64, 2500.0) == pytest.approx(0.5)


def test_other_jobs_take_as_long_as_before_on_as_many_gpus() -> None:
    box = ended(1, spec_=black_box(2), profile=Profile())
    task = only(box)
    assert isinstance(task.truth, FixedTruth)
    assert (task.rigid, task.replicas, task.truth.progress(1)) == (True, 2, 600.0)
    with pytest.raises(Refused):
        task.truth.times((3,), 1)
    still = running(2, on("a", 0), since=NOW - 40.0, declared=False, run_seconds=2.0, spec_=spec(level=Level.SIGNAL))
    assert only(still).truth.progress(1) == pytest.approx(42.0)


def test_a_replayed_job_takes_as_long_as_before() -> None:
    """On its own GPUs, with no start to pay for: a black box exactly, a training job by its model."""
    found = history([ended(1, spec_=black_box(2), profile=Profile())], NOW, restart=0.0)
    [box] = replay("fifo", found.tasks(), Rules(parse_cluster("1x2"))).jobs
    assert box.ended_at - box.started_at == 600.0
    assert box.rho == pytest.approx(box.completion_seconds / 600.0)
    learnt = ended(2)
    found = history([replace(learnt, spec=learnt.spec.having(max_gpus=1))], NOW, restart=0.0)
    [job] = replay("fifo", found.tasks(), Rules(parse_cluster("1x1"))).jobs
    speed = goodput_of(learnt, Shape(1), 64, 0)
    assert speed is not None
    assert job.ended_at - job.started_at == pytest.approx(5000.0 * 64 / speed, rel=0.02)


def test_more_gpus_would_have_helped() -> None:
    jobs = [ended(number, at=10.0 * number, profile=profile(1.0, 20_000.0)) for number in range(1, 5)]
    few, many = (
        replay("goodput", history(jobs, NOW).tasks(), Rules(parse_cluster(nodes))).jobs for nodes in ("1x2", "1x4")
    )
    assert sum(job.completion_seconds for job in many) < 0.8 * sum(job.completion_seconds for job in few)


def test_jobs_that_cannot_be_replayed_are_named_with_the_reason() -> None:
    jobs = [
        ended(1),
        job(2, state=JobState.CANCELLED, spec_=spec(name="early")),
        job(3),
        ended(4, run_seconds=0.0),
        ended(5, state=JobState.CANCELLED),
        running(6, on("a", 0), since=NOW - 50.0, wish=DesiredState.CANCEL),
    ]
    found = history(jobs, NOW)
    assert len(found.tasks()) == 1
    assert found.left_out == (
        ("2 (early)", "never ran"), ("3", "never ran"), ("4", "without run time"), ("5", "cancelled"),
        ("6", "cancelled"),
    )  # fmt: skip
    assert plan_runs.left_out(found) == (
        "left out: 2 never ran (2 (early), 3), 1 without run time (4), 2 cancelled (5, 6)"
    )


def test_times_count_from_the_first_replayed_job() -> None:
    jobs = [ended(3, at=NOW - 100.0), ended(1, at=NOW - 9000.0), ended(2, at=NOW - 3600.0)]
    found = history(jobs, NOW, since=3600.0)
    assert [(task.name, task.at) for task in found.tasks()] == [("2", 0.0), ("3", 3500.0)]


def test_the_daemons_view_of_its_servers_is_a_cluster() -> None:
    gpu = DeviceView("GPU-1", 0, "cuda", "A100", 40_000, 1000, 97, "foreign", "somebody", None, [])
    views = [NodeView("b", "up", "", 8, 1000, 1.0, [gpu]), NodeView("a", "unreachable", "", 8, 1000, 9.0, [gpu]),
             NodeView("c", "up", "", 8, 1000, 1.0, [])]  # fmt: skip
    nodes: tuple[Node, ...] = nodes_of(views)
    assert [node.id for node in nodes] == ["a", "b"]
    assert all(node.state == "up" and node.devices[0].state == "ok" for node in nodes)
