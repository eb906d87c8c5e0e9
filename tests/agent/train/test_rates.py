"""The step gate notices every change of a learning rate that it was not told of, and nothing else."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpq_agent.train.gradients.step_gate import StepGate


def adam(**settings: Any) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}]
    return torch.optim.AdamW(groups, foreach=False, **settings)


class Watched:
    """Optimizers behind a gate."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.changes: list[Any] = []
        steps: Any = None
        gradients: Any = SimpleNamespace(passes=0)
        self.gate = StepGate(optimizers, gradients, steps, self.changes.append, lambda: self.changes.append("rate"))

    def change(self) -> bool:
        """Has a rate changed since the last call?"""
        self.gate.leave()
        changes, self.changes[:] = list(self.changes), []
        return bool(changes)


def multiplied(group: dict[str, Any]) -> None:
    group["lr"] *= 0.5


def becomes_a_tensor(group: dict[str, Any]) -> None:
    group["lr"] = torch.tensor(0.25)


def one_less(group: dict[str, Any]) -> None:
    del group["lr"]


@pytest.mark.parametrize("act", [multiplied, becomes_a_tensor, one_less])
@pytest.mark.parametrize("place", [0, 1])
def test_a_change_of_any_group_is_noticed_once(act: Callable[[Any], None], place: int) -> None:
    optimizer = adam()
    watched = Watched(adam(), optimizer)
    assert not watched.change(), "no rate is noted yet"
    watched.gate.note_rates()
    act(optimizer.param_groups[place])
    assert watched.change()
    assert not watched.change()


def test_a_rate_that_was_announced_and_other_settings_are_no_change() -> None:
    optimizer = adam()
    watched = Watched(optimizer)
    multiplied(optimizer.param_groups[0])
    watched.gate.note_rates()
    optimizer.param_groups[0].update(weight_decay=torch.ones(3), betas=(0.5, 0.9))
    assert not watched.change()


def test_an_added_group_is_no_change_but_a_removed_one_is() -> None:
    optimizer = adam()
    watched = Watched(optimizer)
    watched.gate.note_rates()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert not watched.change()
    watched.gate.note_rates()
    multiplied(optimizer.param_groups[2])
    assert watched.change()
    optimizer.param_groups.pop()
    assert watched.change()


def test_a_changed_rate_tensor_is_noticed_even_without_a_new_version() -> None:
    rate = torch.tensor(0.5)
    watched = Watched(adam(lr=rate))
    watched.gate.note_rates()
    assert not watched.change()
    rate.data.mul_(0.5)
    assert watched.change()
    rate.mul_(0.5)
    assert watched.change()
