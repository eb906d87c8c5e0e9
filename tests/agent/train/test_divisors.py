"""A loss may be a mean over another number of elements in each step, never within one."""

import pytest
import torch

from .test_stepping import Examples, job


@pytest.mark.parametrize("within", [False, True])
def test_shapes_may_differ_from_step_to_step(within: bool) -> None:
    this = job()
    loader = this.loader(Examples(60), batch_size=12, max_local_batch=6)
    model = torch.nn.Conv1d(1, 1, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    this.prepare(model, optimizer)
    bodies = 0
    for _ in this.epochs(2):
        for x, _ in loader:
            number = bodies if within else this.step
            length = (3, 5)[number % 2]
            torch.nn.functional.mse_loss(model(x[:, None, :length]), x[:, None, :length]).backward()
            optimizer.step()
            optimizer.zero_grad()
            bodies += 1
    assert ("token-loss" in this._engine.shape.freedoms._agreed) == within
    assert bodies > this.step or within


@pytest.mark.parametrize("ignored", [False, True])
def test_tokens_that_are_left_out_are_no_shape(ignored: bool) -> None:
    this = job()
    loader = this.loader(Examples(48), batch_size=12)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    this.prepare(model, optimizer)
    for _ in this.epochs(1):
        for x, _ in loader:
            targets = torch.zeros(len(x), dtype=torch.long)
            if ignored:
                targets[: this.step + 1] = -100
            torch.nn.functional.cross_entropy(model(x), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ("token-loss" in this._engine.shape.freedoms._agreed) == ignored
