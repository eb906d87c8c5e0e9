"""What the head of an epoch repeats after a restart in the middle of the epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpq_agent.train.job.job import Job

from .test_stepping import Examples, adam, clear_first, job, network


def heads(head: Callable[[Job, int, Any, Any, Any], Any], consumed: int = 0) -> dict[str, str]:
    """The habits that gpq knows after two epochs of a loop with this head."""
    this = job()
    loader = this.loader(Examples(50), batch_size=10, fixed_batch=True)
    loader.sampler.seek(0, consumed)
    model = network()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, schedule = this.prepare(model, optimizer, schedule)
    for epoch in this.epochs(2):
        head(this, epoch, model, optimizer, schedule)
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    this._engine.shape.freedoms.agree()
    return dict(this._engine.shape.freedoms._agreed)


def doubled(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)


@pytest.mark.parametrize(
    ("head", "detail"),
    [
        (lambda job, epoch, model, optimizer, _: epoch and doubled(model), "changes weights"),
        (lambda job, epoch, model, optimizer, _: epoch or doubled(model), "changes weights"),
        (lambda job, epoch, model, optimizer, _: optimizer.state.clear(), "changes the state of an optimizer"),
        (
            lambda job, epoch, model, optimizer, _: setattr(optimizer, "state", defaultdict(dict)),
            "changes the state of an optimizer",
        ),
        (lambda job, epoch, model, optimizer, schedule: epoch and schedule.step(), "steps a schedule"),
        (lambda job, epoch, model, optimizer, _: doubled(model) if job.step > 0 else None, "changes weights"),
    ],
)
def test_changes_in_the_head_of_an_epoch_are_reported(head: Any, detail: str) -> None:
    assert heads(head) == {"epoch-head": detail}


def test_the_head_of_a_resumed_epoch_shows_nothing() -> None:
    assert heads(lambda job, epoch, model, *_: doubled(model) if epoch == 0 else None, consumed=20) == {}


@pytest.mark.parametrize(
    "head",
    [
        lambda *_: None,
        lambda job, epoch, model, *_: doubled(model) if job.progress.samples == 0 else None,
        lambda job, epoch, model, *_: doubled(model) if job.step == 0 else None,
        lambda job, epoch, model, *_: model(torch.zeros(1, 5)),
        lambda job, epoch, model, optimizer, _: optimizer.param_groups[0].update(lr=0.01 / (1 + epoch)),
        lambda job, epoch, model, *_: model[0].requires_grad_(epoch > 0),
        lambda job, epoch, model, optimizer, schedule: optimizer.zero_grad(),
    ],
)
def test_a_head_that_may_run_again_is_not_reported(head: Any) -> None:
    assert heads(head) == {}
