"""Settings of an optimizer, whatever kind of value they have: every change is noticed, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpq_agent.train.optim.param_groups import ParamGroups


def adam(**settings: Any) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}]
    return torch.optim.AdamW(groups, **settings)


def multiplied(group: dict[str, Any]) -> None:
    group["lr"] *= 0.5


def becomes_a_tensor(group: dict[str, Any]) -> None:
    group["lr"] = torch.tensor(0.25)


def other_betas(group: dict[str, Any]) -> None:
    group["betas"] = (0.5, 0.9)


def switched(group: dict[str, Any]) -> None:
    group["amsgrad"] = True


def none_any_more(group: dict[str, Any]) -> None:
    group["foreach"] = False


def new_setting(group: dict[str, Any]) -> None:
    group["warm"] = 3


def one_less(group: dict[str, Any]) -> None:
    del group["maximize"]


CHANGES = [multiplied, becomes_a_tensor, other_betas, switched, none_any_more, new_setting, one_less]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", [0, 1])
def test_a_change_of_any_group_shows_until_it_is_noted(change: Callable[[Any], None], place: int) -> None:
    optimizer = adam()
    settings = ParamGroups([adam(), optimizer])
    assert not settings.changed(), "nothing is noted yet"
    settings.note()
    assert not settings.changed()
    change(optimizer.param_groups[place])
    assert settings.changed()
    settings.note()
    assert not settings.changed()
    multiplied(optimizer.param_groups[place])
    assert settings.changed()


def test_a_changed_tensor_is_noticed_even_in_a_tuple() -> None:
    rate, beta = torch.tensor(0.1), torch.tensor(0.9)
    optimizer = adam()
    optimizer.param_groups[0].update(lr=rate, betas=(beta, 0.99))
    settings = ParamGroups([optimizer])
    for tensor in (rate, beta):
        settings.note()
        assert not settings.changed()
        tensor.mul_(0.5)
        assert settings.changed()
    settings.note()
    optimizer.param_groups[0]["betas"] = (beta, 0.99)
    assert not settings.changed(), "the same tensor in another tuple is not a change"


def test_a_setting_with_many_numbers_can_be_compared() -> None:
    optimizer = adam()
    settings = ParamGroups([optimizer])
    settings.note()
    optimizer.param_groups[0]["weight_decay"] = torch.ones(3)
    assert settings.changed()
    settings.note()
    assert not settings.changed()


def test_the_same_number_of_another_type_is_not_a_change() -> None:
    optimizer = adam(weight_decay=0.0)
    settings = ParamGroups([optimizer])
    settings.note()
    optimizer.param_groups[0]["weight_decay"] = 0
    assert not settings.changed()


def test_an_added_group_is_not_a_change_but_a_removed_one_is() -> None:
    optimizer = adam()
    settings = ParamGroups([optimizer])
    settings.note()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert not settings.changed()
    settings.note()
    multiplied(optimizer.param_groups[2])
    assert settings.changed()
    optimizer.param_groups.pop()
    assert settings.changed()


def test_a_changed_rate_tensor_is_noticed_even_without_a_new_version() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.5), foreach=False)
    settings = ParamGroups([optimizer])
    settings.note()
    assert not settings.changed()
    optimizer.param_groups[0]["lr"].data.mul_(0.5)
    assert settings.changed()
    settings.note()
    assert not settings.changed()
    optimizer.param_groups[0]["lr"].mul_(0.5)
    assert settings.changed()
