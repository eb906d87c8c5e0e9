"""gpq notices hooks of parameters by their presence, except those of wandb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .test_stepping import Examples, job, prepared

Model = torch.nn.Module
FREEDOMS = {"accumulate", "split", "resize"}
WHOLE, CUT = 4 * [12], 8 * [6]  # examples in each loop body


def read(gradient: torch.Tensor) -> None:
    gradient.norm()


def of_wandb(gradient: torch.Tensor) -> None:
    gradient.norm()


of_wandb.__module__ = "wandb.integration.torch.wandb_torch"


def on_parameters(model: Model, hook: Callable[[torch.Tensor], Any]) -> None:
    for item in model.parameters():
        item.register_hook(hook)


def after(model: Model, hook: Callable[[torch.Tensor], Any]) -> None:
    for item in model.parameters():
        item.register_post_accumulate_grad_hook(hook)


def train(act: Callable[[Model], Any], body: int = -1) -> tuple[set[str], list[int]]:
    """Return the freedoms that a loop lost, and the number of examples in each loop body.

    `act`: before the loop, or in this body.
    """
    this = job()
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    if body < 0:
        act(model)
    sizes: list[int] = []
    for _ in this.epochs(2):
        for x, y in loader:
            if len(sizes) == body:
                act(model)
            sizes.append(len(x))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return this._engine.shape.freedoms.lost, sizes


@pytest.mark.parametrize("add", [on_parameters, after])
def test_a_hook_of_wandb_costs_nothing(add: Callable[[Model, Any], None]) -> None:
    assert train(lambda model: add(model, of_wandb)) == (set(), 2 * CUT)


def test_a_hook_added_in_the_first_loop_body_keeps_every_later_step_whole() -> None:
    assert train(lambda model: on_parameters(model, read), body=0) == (FREEDOMS, [6, 6, *WHOLE[1:], *WHOLE])


def test_a_hook_that_is_added_late_is_noticed_at_the_end_of_the_epoch() -> None:
    assert train(lambda model: on_parameters(model, read), body=7) == (FREEDOMS, [*CUT, *WHOLE])
