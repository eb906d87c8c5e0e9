"""Learning-rate rules: which one gpq chooses, and the factor of each."""

import pytest
import torch
from gpq_agent.train.gradients.lr_rules import NAMES, make_rule
from hypothesis import given
from hypothesis import strategies as st

PARAMETERS = [torch.nn.Parameter(torch.zeros(2))]
SGD = torch.optim.SGD(PARAMETERS, lr=0.1)


def factor(
    name: str, *, total_batch: int = 256, gain: float = 3.0, base_steps: float = 1e9, warmup: float = 0.0
) -> float:
    rule = make_rule(name, SGD, base_batch=64, warmup_steps=warmup)
    return rule.factor(total_batch=total_batch, gain=gain, base_steps=base_steps)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adascale", 3.0), ("adam-sqrt", 3.0**0.5), ("linear", 4.0), ("sqrt", 2.0), ("legw", 2.0), ("none", 1.0)],
)
def test_each_rule_has_its_formula(name: str, expected: float) -> None:
    assert factor(name) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [(torch.optim.SGD, "adascale"), (torch.optim.Adam, "adam-sqrt"), (torch.optim.AdamW, "adam-sqrt")],
)
def test_auto_chooses_by_the_optimizer(optimizer: type[torch.optim.Optimizer], name: str) -> None:
    rule = make_rule("auto", optimizer(PARAMETERS, lr=0.1), base_batch=64)  # type: ignore[call-arg]
    assert (rule.name, rule.notice) == (name, "")


def test_auto_says_when_it_does_not_know_the_optimizer() -> None:
    rule = make_rule("auto", torch.optim.RMSprop(PARAMETERS, lr=0.1), base_batch=64)
    assert rule.name == "sqrt"
    assert "RMSprop" in rule.notice


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="cubic") as refusal:
        make_rule("cubic", SGD, base_batch=64)
    assert all(name in str(refusal.value) for name in NAMES)


@pytest.mark.parametrize("warmup", [-1.0, float("nan")])
def test_a_negative_warm_up_is_refused(warmup: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        make_rule("legw", SGD, base_batch=64, warmup_steps=warmup)


@given(st.sampled_from([name for name in NAMES if name != "auto"]), st.floats(0, 1e6))
def test_the_base_batch_size_keeps_its_rate_after_any_warm_up(name: str, steps: float) -> None:
    assert factor(name, total_batch=64, gain=1.0, base_steps=100 + steps, warmup=100) == pytest.approx(1.0)


def test_legw_warms_up_longer_in_proportion_to_the_batch_size() -> None:
    assert factor("legw", base_steps=199, warmup=100) == pytest.approx(2.0 * 0.5)
    assert factor("legw", base_steps=399, warmup=100) == pytest.approx(2.0)
    assert 0 < factor("legw", base_steps=0, warmup=100) < 0.01
