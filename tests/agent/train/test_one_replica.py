"""What a script does on one replica alone neither hangs nor changes what the others train."""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpq_agent.train as gpq
import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.process import agreement

from tests.support.ports import free_port

from .driver import DEADLINE, FORKSERVER, wait_until

Script = Callable[[Path], None]


def run_replica(environment: dict[str, str], script: Script, folder: Path) -> None:
    """If the library stops it with a message, also write that to <folder>/refused.<rank>."""
    os.environ.update(environment)
    try:
        script(folder)
    except gpq.GpqTrainError as error:
        (folder / f"refused.{environment['RANK']}").write_text(error.message)
        raise


def start(folder: Path, script: Script, attempt: int = 1) -> list[Any]:
    """Two replicas of one server run `script`."""
    run_dir = folder / f"attempt-{attempt}"
    run_dir.mkdir()
    port = str(free_port())
    processes = []
    for rank in range(2):
        environment = {
            wire.ENV_RUN_DIR: str(run_dir), wire.ENV_CHECKPOINT_DIR: str(folder), wire.ENV_ATTEMPT: str(attempt),
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        process = FORKSERVER.Process(target=run_replica, args=(environment, script, folder))
        process.start()
        processes.append(process)
    return processes


def wait(processes: list[Any]) -> list[int | None]:
    """Exit codes by rank. None: still running, and killed."""
    for process in processes:
        process.join(DEADLINE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def refusals(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("refused.*"))]


def prepared(job: gpq.Job, model: torch.nn.Module | None = None) -> tuple[Any, Any, Any]:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(64, 1) / 64)
    loader = job.loader(data, batch_size=8, fixed_batch=True)
    model = job.wrap(model or torch.nn.Linear(1, 1))
    model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return loader, model, optimizer


def train_epoch(loader: Any, model: Any, optimizer: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


# -- values ----------------------------------------------------------------------------------------


def keeps_best(folder: Path) -> None:
    job = gpq.init()
    best = job.state("best", 0.0) if job.rank == 0 else -1.0
    training = prepared(job)
    for _ in job.epochs(job.attempt):
        train_epoch(*training)
        if job.rank == 0:
            job.state("best", 0.75)
    (folder / f"best.{job.attempt}.{job.rank}").write_text(str(best))


def test_one_replica_alone_restores_a_value(tmp_path: Path) -> None:
    for attempt in (1, 2):
        assert wait(start(tmp_path, keeps_best, attempt)) == [0, 0]
    assert [float((tmp_path / f"best.{attempt}.0").read_text()) for attempt in (1, 2)] == [0.0, 0.75]


class Average:
    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class Counter(Average):
    pass


def numbers_apart(folder: Path) -> None:
    job = gpq.init()
    if job.rank == 0:
        job.state(Average())
    job.state(Counter())
    prepared(job)


def test_a_part_that_would_get_the_state_of_another_one_is_refused(tmp_path: Path) -> None:
    assert wait(start(tmp_path, numbers_apart)) == [1, 1]
    line = "job.state() keeps other objects on one replica than on replica 0"
    assert refusals(tmp_path) == [line, line]


# -- the model -------------------------------------------------------------------------------------


class Scaled(torch.nn.Module):
    """Its buffer is sent from replica 0 to the others in each step."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(1, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x * self.scale)


def evaluate(job: gpq.Job, model: Any, seconds: float, *, gradients: bool, training: bool, declared: bool) -> None:
    model.train(training)
    with torch.set_grad_enabled(gradients), job.eval() if declared else contextlib.nullcontext():
        for _ in range(3):
            job.log(score=model(torch.ones(4, 1)).mean())
        time.sleep(seconds)
    model.train()


def evaluates(places: str, folder: Path) -> None:
    """`places`: "" for nowhere."""
    agreement.LOOK_SECONDS, agreement.MEET_SECONDS = 0.05, 0.4
    job = gpq.init()
    torch.manual_seed(job.rank)
    loader, model, optimizer = prepared(job, Scaled())
    model.module.scale.fill_(1.0 + job.rank)
    modes = [(gradients, training, declared) for gradients in (0, 1) for training in (0, 1) for declared in (0, 1)]

    def at(place: str, number: int) -> None:
        if place in places.split() and job.rank == 0:
            gradients, training, declared = map(bool, modes[number % len(modes)])
            patience = 2 * agreement.MEET_SECONDS if number in (3, 5) else 0.0
            evaluate(job, model, patience, gradients=gradients, training=training, declared=declared)

    at("before", 6)
    for epoch in job.epochs(2):
        for number, (x,) in enumerate(loader):
            at("head", number)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            at("forward", number if number % 8 < 4 else 0)
            loss.backward()
            at("backward", number)
            optimizer.step()
        at("between", 5 + epoch)
    at("after", 6)
    torch.save(model.module.state_dict(), folder / f"model.{job.rank}")


def evaluates_in_steps(places: str, folder: Path) -> None:
    """In a loop that draws its own batches."""
    job = gpq.init()
    model = job.wrap(Scaled())
    model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in job.steps(8):
        if step == 0:
            model.module.scale.fill_(1.0 + job.rank)
        x = job.share(torch.rand(8, 1))
        if places and job.rank == 0:
            evaluate(job, model, 0.0, gradients=step > 0, training=step % 2 > 0, declared=False)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.save(model.module.state_dict(), folder / f"model.{job.rank}")


@pytest.mark.parametrize("loop", [evaluates, evaluates_in_steps])
def test_one_replica_alone_evaluates_anywhere_and_changes_nothing(tmp_path: Path, loop: Any) -> None:
    models = []
    for places in ("", "before head forward backward between after"):
        folder = tmp_path / f"of{len(places)}"
        folder.mkdir()
        assert wait(start(folder, functools.partial(loop, places))) == [0, 0]
        models += [torch.load(folder / f"model.{rank}") for rank in (0, 1)]
    for model in models[1:]:
        assert all(torch.equal(value, models[0][name]) for name, value in model.items())


# -- signals and calls -----------------------------------------------------------------------------


def trains_on(folder: Path) -> None:
    job = gpq.init()
    training = prepared(job)
    for epoch in job.epochs(10**6):
        train_epoch(*training)
        (folder / f"epoch.{job.rank}").write_text(str(epoch))


def test_a_signal_to_any_replica_stops_all_with_a_checkpoint(tmp_path: Path) -> None:
    processes = start(tmp_path, trains_on)
    wait_until((tmp_path / "epoch.1").exists, "an epoch")
    os.kill(processes[1].pid, signal.SIGTERM)
    assert wait(processes) == [143, 143]
    lines = (tmp_path / "attempt-1" / wire.REPORT).read_bytes().splitlines()
    saves = [line["why"] for line in map(wire.decode, lines) if line["kind"] == "checkpoint"]
    assert saves[-1:] == ["stop"]


def looks_before(job: gpq.Job, loader: Any) -> None:
    if job.step == 0:
        next(iter(loader))


def looks_between(job: gpq.Job, loader: Any) -> None:
    if job.step > 10:
        next(iter(loader))


def saves(job: gpq.Job, loader: Any) -> None:
    job.saved(job.step)


def ends(job: gpq.Job, loader: Any) -> None:
    job.exit_preempted(job.step)


@pytest.mark.parametrize("alone", [looks_before, looks_between, saves, ends])
def test_a_call_of_one_replica_that_needs_all_ends_the_job_with_its_name(
    tmp_path: Path, alone: Callable[[gpq.Job, Any], None]
) -> None:
    codes = wait(start(tmp_path, functools.partial(calls_alone, alone)))
    assert 1 in codes
    assert None not in codes
    lines = refusals(tmp_path)
    assert lines
    assert all(line.startswith("replica 0 ") for line in lines)
    assert all(any(words in line for words in (" is in ", " waits in ", " has begun ")) for line in lines)


def calls_alone(alone: Callable[[gpq.Job, Any], None], folder: Path) -> None:
    agreement.MEET_SECONDS = 2.0
    job = gpq.init()
    training = prepared(job, Scaled())
    for _ in job.epochs(4):
        if job.rank == 0:
            alone(job, training[0])
        train_epoch(*training)
