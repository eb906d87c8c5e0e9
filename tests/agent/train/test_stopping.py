"""A stop at any time leaves a checkpoint from which the job resumes as if nothing had happened."""

import os
import select
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.process.shutdown import SigtermHandler

from .driver import DEADLINE, FORKSERVER, TrainingJob, wait_until

Training = Callable[..., TrainingJob]


def complete(job: TrainingJob) -> bool:
    everything = list(range(job.settings.size))
    return job.visits() == dict.fromkeys(range(job.settings.epochs), everything)


def test_a_stop_before_the_first_step_saves_the_start(training: Training) -> None:
    job = training()
    attempt = job.start(replicas=1, control=wire.Control(attempt=1, seq=1, stop=True))
    assert attempt.wait() == [0]
    assert attempt.micros() == []
    assert (attempt.run_dir / wire.STOPPED).exists()
    assert [line["why"] for line in attempt.reports("checkpoint")] == ["stop"]
    job.run(replicas=1)
    assert complete(job)


def test_orders_of_another_attempt_are_ignored(training: Training) -> None:
    job = training()
    attempt = job.start(replicas=1, control=wire.Control(attempt=2, seq=8, stop=True, atomic_batch=3))
    assert attempt.wait() == [0]
    assert attempt.reports("retuned") == []
    assert not (attempt.run_dir / wire.STOPPED).exists()
    assert complete(job)


def test_stops_work_during_accumulation_and_evaluation_with_loader_processes(training: Training) -> None:
    job = training(size=150, epochs=2, max_local=3, batch=12, workers=2, pace=0.01, evaluate=True, optimizer="adamw")
    for replicas in (1, 2):
        attempt = job.start(replicas, brake=15).after_micros(15)
        assert attempt.stop() == [0] * replicas
        counts = {len(attempt.micros(rank)) for rank in range(replicas)}
        assert len(counts) == 1, "all replicas stop at the same micro-batch"
    last = job.run(replicas=1)
    assert complete(job)
    assert {"loss", "validation"} <= set().union(*(line["values"] for line in last.reports("metrics")))


def test_sigterm_writes_a_checkpoint_and_has_its_own_exit_code(training: Training) -> None:
    job = training(pace=0.01)
    attempt = job.start(replicas=2, brake=5).after_micros(5)
    for process in attempt.processes:
        os.kill(int(process.pid or 0), signal.SIGTERM)
    assert attempt.wait() == [143, 143]
    assert [line["why"] for line in attempt.reports("checkpoint")] == ["stop"]
    job.run(replicas=1)
    assert complete(job)


def test_a_stop_waits_until_its_checkpoint_can_be_written(training: Training) -> None:
    job = training(pace=0.01, epochs=100)
    attempt = job.start(replicas=2).after_micros(5)
    folder = job.checkpoints / "gpq"
    shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    attempt.order(stop=True)
    wait_until(lambda: attempt.reports("notice"), "a notice")
    assert "cannot write a checkpoint" in attempt.reports("notice")[0]["message"]
    before = len(attempt.micros())
    wait_until(lambda: len(attempt.micros()) > before, "training continues")
    assert not (attempt.run_dir / wire.STOPPED).exists()
    folder.unlink()
    folder.mkdir()
    assert attempt.wait() == [0, 0]
    assert (attempt.run_dir / wire.STOPPED).exists()
    assert job.start(replicas=1).after_micros(1).micros()[0]["step"] > 5


def test_a_killed_attempt_resumes_from_its_last_checkpoint_and_the_end_is_saved(training: Training) -> None:
    job = training(pace=0.01, epochs=2)
    stopped = job.start(replicas=2, brake=4).after_micros(4)
    assert stopped.stop() == [0, 0]
    reached = 1 + max(micro["step"] for micro in stopped.micros() if micro["seen"])
    job.start(replicas=1, brake=3).after_micros(3).kill()
    again = job.run(replicas=1)
    assert again.micros()[0]["step"] == reached, "the steps of the killed attempt run again"
    assert [line["why"] for line in again.reports("checkpoint")] == ["end"]
    # Another start of a finished job does nothing.
    assert job.run(replicas=2).micros() == []


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_optimizers_moments_and_the_schedule_survive_unchanged(training: Training, optimizer: str) -> None:
    settings = {"fixed": True, "optimizer": optimizer, "epochs": 2}
    undisturbed = training(**settings)
    undisturbed.run(replicas=1)
    job = training(pace=0.01, **settings)
    attempt = job.start(replicas=1, brake=8).after_micros(8)
    assert attempt.stop() == [0]
    saved = torch.load(newest(job) / "state.pt", weights_only=True)
    last = job.run(replicas=1)
    restored = torch.load(job.out / f"restored.{last.number}.pt", weights_only=True)
    slots = ["exp_avg", "exp_avg_sq", "step"] if optimizer == "adamw" else ["momentum_buffer"]
    for index, state in saved["optimizer"]["state"].items():
        for slot in slots:
            assert torch.equal(
                torch.as_tensor(restored["optimizer"]["state"][index][slot]), torch.as_tensor(state[slot])
            )
            assert torch.as_tensor(state[slot]).abs().sum() > 0
    assert restored["lr"] == saved["scheduler:0"]["_last_lr"]
    assert job.losses() == pytest.approx(undisturbed.losses(), rel=1e-4)
    assert [micro["rate"] for micro in rank_zero(job)] == [micro["rate"] for micro in rank_zero(undisturbed)]


def test_sigterm_still_ends_a_process_forked_by_the_script() -> None:
    process = FORKSERVER.Process(target=fork_and_terminate)
    process.start()
    process.join(DEADLINE)
    assert process.exitcode == 0


def fork_and_terminate() -> None:
    terminator = SigtermHandler()
    terminator.arm()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b".")  # Python drops signals that arrive while it still forks
        while True:  # and pause() does not wake for a signal that came just before it
            select.select([], [], [], 0.05)
    os.read(reading, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not terminator.requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminator.requested


def newest(job: TrainingJob) -> Path:
    return max((job.checkpoints / "gpq").glob("step-*"))


def rank_zero(job: TrainingJob) -> list[dict[str, object]]:
    return [micro for attempt in job.attempts for micro in attempt.micros()]
