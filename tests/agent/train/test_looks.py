"""Looking at a batch takes nothing away from the training. Training on it is refused."""

import copy
from typing import Any

import pytest
import torch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job

from .test_stepping import Examples, adam, clear_first, job, network, plain, same

Model = torch.nn.Module


def begun(local: int | None = None) -> tuple[Job, Any, Model, Any]:
    this = job()
    loader = this.loader(Examples(40), batch_size=10, max_local_batch=local)
    model, optimizer, _ = this.prepare(network_ := network(), adam(network_))
    return this, loader, model, optimizer


@pytest.mark.parametrize("local", [10, 4])
def test_looking_at_the_first_batch_loses_neither_the_batch_nor_a_freedom(local: int) -> None:
    this, loader, model, optimizer = begun(local)
    x, _ = next(iter(loader))
    model(x)
    for epoch in this.epochs(3):
        if epoch == 1:
            next(iter(loader))
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert same(model, plain(Examples(40), 10, 3))
    assert not this._engine.shape.freedoms.lost
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (3, 3)


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_step_outside_the_loop_over_the_loader_is_refused_and_trains_nothing(epochs: int) -> None:
    this, loader, model, optimizer = begun()
    before = copy.deepcopy(model)
    for _ in this.epochs(epochs) if epochs else range(1):
        x, y = next(iter(loader))
        with pytest.raises(GpqTrainError, match="called outside the loop over"):
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert same(model, before)


def test_a_step_without_gradients_before_the_training_is_as_in_plain_pytorch() -> None:
    this, loader, model, optimizer = begun()
    optimizer.step()
    for _ in this.epochs(1):
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert same(model, plain(Examples(40), 10, 1))
    assert not this._engine.shape.freedoms.lost


def test_a_loop_that_accumulates_itself_may_step_once_more_after_its_last_batch() -> None:
    this, loader, model, optimizer = begun()
    batches = []
    for _ in this.epochs(1):
        for number, batch in enumerate(loader):
            batches.append(batch)
            torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            if number == 2:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.step()
        with pytest.raises(GpqTrainError, match="called outside the loop over"):
            optimizer.step()
    alone = network()
    other = adam(alone)
    for group in (batches[:3], batches[3:]):
        other.zero_grad()
        for x, y in group:
            torch.nn.functional.mse_loss(alone(x), y).backward()
        other.step()
    assert same(model, alone)
    assert "hand-accumulation" in this._engine.shape.freedoms._agreed


def test_a_loop_left_before_a_step_uses_no_batch_up() -> None:
    this, loader, model, optimizer = begun()
    for _ in this.epochs(1):
        for number, (x, y) in enumerate(loader):
            if number == 2:
                break
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert same(model, plain(Examples(40), 10, 1))
    assert "own-break" in this._engine.shape.freedoms._agreed
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (1, 1)


def test_a_second_loop_during_a_batch_is_refused() -> None:
    _, loader, _, _ = begun()
    batches = iter(loader)
    next(batches)
    with pytest.raises(GpqTrainError, match="while another one is still in a batch"):
        next(iter(loader))


def test_an_epoch_with_a_skipped_batch_is_not_exact() -> None:
    this, loader, model, optimizer = begun()
    for epoch in this.epochs(2):
        for number, (x, y) in enumerate(loader):
            if (epoch, number) == (1, 2):
                continue
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    assert (this._engine.boundaries.ledger.passes, this._engine.boundaries.ledger.exact) == (2, 1)
