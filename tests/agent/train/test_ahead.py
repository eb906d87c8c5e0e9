"""A loader around job.loader() that draws a batch ahead is refused with its cause. A loop that skips a batch is not."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.data.order import permutation
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job

from .driver import DEADLINE
from .scripts.ahead import LOADERS
from .test_launch import environment, torchrun
from .test_stepping import Examples, adam, clear_first, job, network, plain, prepared, same

Model = torch.nn.Module
AHEAD = "a loader around job.loader\\(\\) draws a batch ahead, so the last batch of an epoch trains after"
SKIPPED = "the loop asked for the next batch without a backward pass in the one before"
HABITS = ("skipped-batch", "hand-accumulation", "own-next")


def loss(model: Model, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def noticed(this: Job) -> list[str]:
    return [code for code in HABITS if this._engine.shape.freedoms.noticed(code)]


def plainly(data: Examples, steps: list[torch.Tensor]) -> Model:
    """Train on these batches with plain PyTorch."""
    model = network()
    optimizer = adam(model)
    for index in steps:
        clear_first(model, optimizer, lambda: loss(model, data[index]))  # type: ignore[index] # noqa: B023
    return model


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_that_draws_a_batch_ahead_is_refused_with_its_cause(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, this = Examples(45), job()
    loader = this.loader(data, batch_size=10)
    model, optimizer, _ = prepared(this)

    def train() -> None:
        for _ in this.epochs(2):
            for batch in LOADERS[name](loader):
                clear_first(model, optimizer, lambda: loss(model, batch))  # noqa: B023

    with pytest.raises(GpqTrainError, match=AHEAD) as refusal:
        train()
    assert "iterate over job.loader() itself" in refusal.value.hint
    order = permutation(0, 0, 45, shuffle=True)
    assert same(model, plainly(data, list(order[:40].split(10)))), "what was trained before is as in plain PyTorch"
    assert SKIPPED in capsys.readouterr().err
    assert "hand-accumulation" not in noticed(this)
    assert this._engine.shape.freedoms.lost == {"accumulate", "split", "resize", "retune"}


@pytest.mark.parametrize("name", LOADERS)
def test_replicas_with_a_loader_that_draws_ahead_end_with_one_line(name: str, tmp_path: Path) -> None:
    gpq = {
        wire.ENV_RUN_DIR: str(tmp_path),
        wire.ENV_CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
        wire.ENV_ATTEMPT: "1",
        wire.ENV_CORES: "0;0",
    }
    run = subprocess.run(
        [*torchrun(2), "-m", "tests.agent.train.scripts.ahead", name], cwd=tmp_path, env=environment(**gpq),
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "is over" not in run.stdout
    first = wire.read_json(str(tmp_path / wire.FIRST_ERROR))
    assert first is not None
    assert first["error"].startswith("GpqTrainError: a loader around job.loader() draws a batch ahead"), run.stderr
    assert SKIPPED in run.stderr


def passed_on(loader: Any) -> Iterator[Any]:
    yield from loader


@pytest.mark.parametrize("around", [iter, passed_on])
def test_a_loop_that_skips_its_first_batch_trains_on(around: Any) -> None:
    data, this = Examples(40), job()
    loader = this.loader(data, batch_size=10)
    model, optimizer, _ = prepared(this)
    orders = [permutation(0, epoch, 40, shuffle=True) for epoch in range(2)]
    for epoch in this.epochs(2):
        for batch in around(loader):
            if (batch[0] == data.x[orders[epoch][0]]).all(1).any():
                continue
            clear_first(model, optimizer, lambda: loss(model, batch))  # noqa: B023
    assert same(model, plainly(data, [index for order in orders for index in order[10:].split(10)]))
    assert noticed(this) == ["skipped-batch"]
    assert this.step == 6


def test_batches_that_are_drawn_together_train_as_in_plain_pytorch() -> None:
    this = job()
    loader = this.loader(Examples(40), batch_size=10)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(2):
        batches = iter(loader)
        for _ in range(2):
            optimizer.zero_grad()
            for batch in [next(batches), next(batches)]:
                (loss(model, batch) / 2).backward()
            optimizer.step()
    assert same(model, plain(Examples(40), 20, 2))
    assert noticed(this) == ["skipped-batch", "own-next"]
