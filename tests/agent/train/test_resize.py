"""Real process groups: a job changes its size and batch size again and again, and nobody can tell from its results."""

from collections.abc import Callable
from typing import Any

import pytest
from gpq_agent import wire

from .driver import TrainingJob, wait_until

Training = Callable[..., TrainingJob]


def everything(job: TrainingJob) -> dict[int, list[int]]:
    return {epoch: list(range(job.settings.size)) for epoch in range(job.settings.epochs)}


def is_exact(job: TrainingJob) -> bool:
    """Has each pass used each example once, and the last, which the job's end cuts short, none twice?"""
    *whole, last = job.visits().values()
    return all(seen == list(range(job.settings.size)) for seen in whole) and len(set(last)) == len(last)


def test_ten_resizes_and_live_batch_changes_keep_each_example_once_per_epoch_and_the_loss_curve(
    training: Training,
) -> None:
    settings = {"size": 1003, "epochs": 8, "batch": 12, "max_local": 12, "fixed": True}
    undisturbed = training(**settings)
    undisturbed.run(replicas=1)
    job = training(pace=0.004, **settings)
    for number in range(10):
        attempt = job.start(replicas=1 + number % 2, brake=8)
        attempt.after_micros(8)
        attempt.order(atomic_batch=(5, 3, 12)[number % 3])
        wait_until(lambda: attempt.reports("retuned") or not attempt.alive, "the live change")  # noqa: B023
        assert attempt.stop() == [0] * attempt.replicas
        assert (attempt.run_dir / wire.STOPPED).exists()
    assert len(job.run(replicas=1).micros()) > 0, "the last attempt still had steps to run"

    assert job.visits() == everything(job)
    expected, losses = undisturbed.losses(), job.losses()
    assert list(losses) == list(expected)
    for step, loss in expected.items():
        assert losses[step] == pytest.approx(loss, rel=1e-4), f"step {step}"


@pytest.mark.parametrize("lottery", ["init", "generator"])
def test_all_processes_use_the_seed_that_the_first_one_drew(training: Training, lottery: str) -> None:
    job = training(size=120, epochs=2, batch=12, lottery=lottery)
    job.run(replicas=2)
    assert job.visits() == everything(job)


def test_three_uneven_replicas_with_growing_batches_and_prefetching_visit_each_example_once_a_pass(
    training: Training,
) -> None:
    job = training(size=600, epochs=4, batch=10, max_batch=70, max_local=9, workers=1, optimizer="adamw", pace=0.004)
    for replicas, (atomic, accum) in ((3, (7, 1)), (2, (9, 2)), (3, (4, 0))):
        attempt = job.start(replicas, brake=6).after_micros(6)
        sequence = attempt.order(atomic_batch=atomic, accum_steps=accum)
        wait_until(lambda: attempt.reports("retuned"), "the live change")  # noqa: B023
        retuned = attempt.reports("retuned")[0]
        assert (retuned["seq"], retuned["atomic_batch"], retuned["accum_steps"]) == (sequence, atomic, accum)
        attempt.after_micros(len(attempt.micros()) + 4)
        assert attempt.stop() == [0] * replicas
    job.run(replicas=1)
    assert is_exact(job)
    assert len(job.visits()) > job.settings.epochs


@pytest.mark.parametrize("option", [{"num_workers": [0, 2]}, {"num_workers": [1, 1], "prefetch_factor": [6, 2]}])
def test_replicas_with_unequal_workers_follow_an_order_at_the_same_step(
    training: Training, option: dict[str, list[int]]
) -> None:
    job = training(size=640, epochs=2, batch=16, max_local=32, by_rank=option)
    attempt = job.start(2, brake=4).after_micros(4)
    sequence = attempt.order(atomic_batch=16)
    wait_until(lambda: attempt.reports("retuned"), "the live change")
    assert attempt.reports("retuned")[0]["seq"] == sequence
    attempt.after_micros(len(attempt.micros()) + 2)
    assert attempt.stop() == [0, 0]
    job.run(2)
    sizes = [[len(micro["seen"]) for run in job.attempts for micro in run.micros(rank)] for rank in (0, 1)]
    assert sizes[0] == sizes[1]
    assert is_exact(job)
    lines = [line["message"] for line in attempt.reports("notice")]
    assert len([line for line in lines if "num_workers or prefetch_factor differ" in line]) == 1


@pytest.mark.parametrize(
    ("name", "values"), [("batch_size", [16, 12]), ("shuffle", [True, False]), ("drop_last", [False, True])]
)
def test_replicas_with_other_arguments_of_the_loader_stop_before_a_step(
    training: Training, name: str, values: list[Any]
) -> None:
    job = training(max_batch=16, by_rank={name: values})
    assert job.start(2).wait() == [1, 1]
    lines = {path.read_text() for path in job.out.glob("refused.*")}
    assert lines == {f"replica 1 calls job.loader() with another {name} than replica 0"}


def test_reports_contain_what_the_daemon_fits_and_shows(training: Training) -> None:
    job = training(size=400, epochs=8, batch=8, max_batch=64, max_local=32, optimizer="adamw", pace=0.004)
    attempt = job.start(replicas=2, control=wire.Control(attempt=1, seq=4, atomic_batch=8, accum_steps=1))
    assert attempt.wait() == [0, 0]
    (declared,) = attempt.reports("declared")
    assert {name: declared[name] for name in ("level", "batch_size", "max_batch_size", "max_atomic_batch")} == {
        "level": "adaptive", "batch_size": 8, "max_batch_size": 64, "max_atomic_batch": 32,
    }  # fmt: skip
    assert (declared["dataset_size"], declared["epochs"], declared["rule"]) == (400, 8, "adam-sqrt")
    assert declared["parameters"] == 6 * 16 + 16 + 16 + 1
    assert set(wire.Declared._fields) <= set(declared)
    (ready,) = attempt.reports("ready")
    assert ready["seconds"] > 0
    timings = attempt.reports("timing")
    assert {(line["nodes"], line["replicas"], line["atomic_batch"], line["accum_steps"]) for line in timings} == {
        (1, 2, 8, 1)
    }
    steps, seconds = sum(line["step_count"] for line in timings), sum(line["step_sum"] for line in timings)
    assert 100 < steps <= 400
    assert seconds / steps >= 0.004, "the pace of the script is in the times"
    assert sum(line["accum_count"] for line in timings) > 20
    noise = attempt.reports("noise")[-1]
    assert noise["samples"] > 0
    assert noise["var"] > 0
    assert noise["preconditioned"]
    progress = attempt.reports("progress")
    assert [line["step"] for line in progress] == sorted(line["step"] for line in progress)
    assert progress[-1]["fraction"] == 1.0
    assert progress[-1]["base_steps"] >= progress[-1]["step"] > 0
    assert attempt.reports("retuned")[0]["seq"] == 4
    assert "loss" in attempt.reports("metrics")[-1]["values"]
