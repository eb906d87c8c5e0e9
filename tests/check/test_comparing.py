"""How gpq check compares two runs: what counts as a difference, what passes, and which cause it guesses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from gpq_agent.train.prove.sketch import COUNT, ROWS, WIDTH, Sketcher

from gpq.check.guesses import Case, guess
from gpq.check.judge import Judge
from gpq.check.records import GRADIENT, Facts, Run, Step
from gpq.check.rounding import apart
from gpq.check.shapes import Shape
from gpq.source import Script

STEPS = 6
BODY = ("first.weight", "second.weight")
SKETCH = Sketcher()
Weights = dict[str, torch.Tensor]
Alter = Callable[[int, Weights], Weights]


def same(_: int, gradients: Weights) -> Weights:
    return gradients


def trained(
    alter: Alter = same,
    *,
    seed: int = 0,
    noise: float = 1e-7,
    rate: float = 1e-3,
    bias: float = 0.0,
    half: bool = False,
) -> Run:
    """Plain gradient descent on made-up gradients, each run with its own rounding. `bias`: size of the noise of one
    tensor that has no other gradient. `half`: in bfloat16."""
    dtype = torch.bfloat16 if half else torch.float32
    generator = torch.Generator().manual_seed(1)
    luck = torch.Generator().manual_seed(100 + seed)
    weights = {name: torch.randn(60, 70, generator=generator) for name in BODY}
    weights["key.bias"] = torch.randn(50, generator=generator)
    run = Run(facts=Facts(loader=True, size=100, batch=8, half=half), ended=True)
    for number in range(STEPS + 1):
        tensors = {}
        if number:
            plain = {name: torch.randn(60, 70, generator=generator) for name in BODY}
            plain["key.bias"] = torch.zeros(50)
            gradients = alter(number, plain)
            for name, value in gradients.items():
                size = bias if name == "key.bias" else noise * float(value.norm())
                value = value + size * torch.randn(value.shape, generator=luck) / math.sqrt(value.numel())
                weights[name] = weights[name] - rate * value
                tensors[GRADIENT + name] = SKETCH(value.to(dtype))
        tensors |= {name: SKETCH(value.to(dtype)) for name, value in weights.items()}
        run.steps[number] = Step(tensors=tensors, indices=[number], rates=[[rate]] if number else [])
    return run


def judge(**how: float) -> Judge:
    return Judge(trained(**how), trained(seed=1, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1,), (7, 9), (WIDTH + 3,), (2, ROWS * WIDTH // 2 + 5)])
def test_a_fingerprint_shows_how_far_apart_two_tensors_are(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(3):
        one = torch.randn(shape, generator=generator)
        other = one + 1e-3 * torch.randn(shape, generator=generator)
        found.append(apart(SKETCH(one), SKETCH(other)) / float((one.double() - other.double()).norm()))
        assert SKETCH(one)[0] == pytest.approx(float(one.double().norm()))
        assert SKETCH(one) == Sketcher()(one.clone())
    assert all(0.3 < each < 2 for each in found)
    assert len(SKETCH(one)) == COUNT + 2


def test_values_that_are_not_finite_are_reported() -> None:
    assert SKETCH(torch.tensor([1.0, math.inf])) == [None]
    assert apart([None], [None]) == 0.0
    assert apart(SKETCH(torch.ones(2)), [None]) == math.inf


def test_rounding_is_not_a_difference() -> None:
    found = judge().judge(trained(seed=2, noise=5e-7))
    assert (found.step, found.metrics, found.missing) == (None, [], False)
    assert found.largest is not None
    assert found.largest < 1e-6


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("factor", [1.01, 0.99, 0.86, 3.0])
def test_a_gradient_that_is_off_by_one_per_cent_shows_even_if_steps_are_small(rate: float, factor: float) -> None:
    judged = judge(rate=rate)
    run = trained(
        lambda number, gradients: {name: value * factor for name, value in gradients.items()}, seed=2, rate=rate
    )
    found = judged.judge(run)
    assert found.step == 1
    assert found.differences[0].what in [GRADIENT + name for name in BODY]
    assert found.samples is None
    assert judged.factor(1, run.steps[1]) == pytest.approx(factor, rel=1e-3)


def test_a_clip_by_14_per_cent_is_caught_even_if_a_small_rate_keeps_it_below_the_tolerance() -> None:
    run = trained(
        lambda number, gradients: {name: value * (0.86 if number > 3 else 1) for name, value in gradients.items()},
        seed=2,
        rate=1e-5,
    )
    found = judge(rate=1e-5).judge(run)
    assert found.step == 4
    assert found.largest is not None
    assert found.largest < 1e-4


def test_a_tensor_whose_gradient_is_only_rounding_may_drift() -> None:
    found = judge(bias=1.0, rate=0.1).judge(trained(seed=2, bias=1.0, rate=0.1))
    assert found.step is None
    assert found.largest is not None
    assert found.largest < 1e-4  # this tensor does not count

    wrong = trained(lambda _, each: {**each, "first.weight": each["first.weight"] * 1.01}, seed=2, bias=1.0, rate=0.1)
    assert judge(bias=1.0, rate=0.1).judge(wrong).step == 1


def test_in_half_precision_only_the_first_changed_step_is_judged() -> None:
    """Right runs differed by 0.2 to 0.9% in the first step, and later steps amplify it."""

    def off(by: float, since: int) -> Alter:
        return lambda number, each: {name: value * by if number >= since else value for name, value in each.items()}

    how = {"half": True, "bias": 1.0, "noise": 0.0}
    judged = Judge(trained(**how), trained(seed=1, **{**how, "noise": 3e-3}))  # type: ignore[arg-type]
    assert judged.rounding.coarse == pytest.approx(0.0234, rel=0.01)
    assert not judged.rounding.mixed
    assert judged.rounding.ordered is None
    for by, since, step in ((1.008, 1, None), (1.04, 1, 1), (1.04, 3, 3), (1.008, 3, None)):
        run = trained(off(by, since), **how)  # type: ignore[arg-type]
        found = judged.judge(run)
        assert found.step == step, (by, since, found)
        assert found.largest is not None
        assert found.largest < 0.05
    # If the first step passes, later tensors may be as far away as they like. Samples and rates may not.
    run = trained(
        lambda number, each: {name: value * (1.005 if number == 1 else 3.0) for name, value in each.items()}, **how
    )  # type: ignore[arg-type]
    assert judged.judge(run).step is None
    run.steps[5].rates = [[0.5]]
    assert judged.judge(run).step == 5


def test_in_half_precision_the_first_step_is_judged_by_its_gradients() -> None:
    """A few gradients may nearly cancel, and weights that began at zero show only their signs."""

    def run(rounding: float, factors: dict[str, float] | None = None) -> Run:
        generator, luck = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
        tensors = {"center": torch.ones(9)}
        for layer in map("layer.{}".format, range(10)):
            gradient, sign = torch.randn(200, generator=generator), torch.ones(200)
            sign[:50] = -1.0 if rounding else 1.0  # off by as much as the whole norm
            gradient *= 1 + rounding * torch.randn(200, generator=luck)
            tensors |= {GRADIENT + layer: gradient, layer: sign}
            tensors[f"optimizer.exp_avg of {layer}"] = gradient * 0.1
        for name, factor in (factors or {}).items():
            tensors[name] = tensors[name] * factor
        sketches = {name: SKETCH(value) for name, value in tensors.items()}
        steps = {0: Step(), 1: Step(tensors=sketches)}
        return Run(facts=Facts(loader=True), steps=steps, ended=True, epsilon=2.0**-7)

    judged = Judge(run(0.0), run(0.0), exact=False)
    assert judged.rounding.coarse == pytest.approx(0.0234, rel=0.01)
    first, second = GRADIENT + "layer.0", GRADIENT + "layer.1"
    for rounding, factors, step in (
        (0.005, {}, None),
        (0.005, {first: 1.1}, None),
        (0.005, {first: 1.1, second: 1.1}, 1),
        (0.005, {first: 1.5}, 1),
        (0.005, {"layer.0": 4.0}, 1),
        (0.005, {"center": math.inf}, 1),
        (0.0, {f"layer.{number}": 1.1 for number in range(4)}, 1),  # from equal gradients
    ):
        assert judged.judge(run(rounding, factors)).step == step, (rounding, factors)


def test_an_effect_of_the_order_of_examples_is_not_mistaken_for_rounding() -> None:
    mixed = Judge(trained(), trained(lambda number, each: {name: value * 1.2 for name, value in each.items()}, seed=1))
    assert mixed.rounding.mixed
    assert mixed.rounding.ordered == 1
    found = mixed.judge(trained(lambda number, each: {name: value * 1.1 for name, value in each.items()}, seed=2))
    assert found.step == 1


def test_samples_rates_and_numbers_are_compared_exactly() -> None:
    judged = judge()
    run = trained(seed=2)
    run.steps[2].indices = [99]
    run.steps[3].rates = [[1.01e-3]]
    found = judged.judge(run)
    assert (found.step, found.samples, found.rates, found.tensors) == (2, 2, 3, None)

    for each in (judged.reference, run):
        each.steps[5].numbers = {"scheduler:0.last_epoch": 5.0, "scheduler:0._is_initial": 1.0}
    run.steps[5].numbers = {"scheduler:0.last_epoch": 4.0, "scheduler:0._is_initial": 0.0}
    assert judged.judge(run).tensors == 5
    assert [each.what for each in judged.judge(run).differences] == ["scheduler:0.last_epoch"]


def test_a_weight_that_is_missing_or_not_finite_differs() -> None:
    judged = judge()
    for sketch in ({}, {"first.weight": [None]}):
        run = trained(seed=2)
        run.steps[4].tensors = {**run.steps[4].tensors, **sketch} if sketch else {}
        assert judged.judge(run).tensors == 4


def test_metrics_are_means_over_the_examples_of_a_step() -> None:
    judged = judge()
    run = trained(seed=2)
    judged.reference.steps[1].metrics = {"loss": [(2.0, 12, 0)], "seen": [(7.0, 0, 0)]}
    run.steps[1].metrics = {"loss": [(1.0, 4, 0), (2.5, 8, 1)], "seen": [(7.0, 0, 0), (3.0, 0, 1)]}
    assert judged.judge(run).metrics == []
    run.steps[1].metrics["loss"] = [(1.0, 8, 0), (2.5, 4, 1)]
    assert judged.judge(run).metrics == ["loss"]


def test_a_guess_depends_on_the_first_difference_and_on_the_script() -> None:
    judged = judge()
    tripled = trained(lambda _, each: {name: value * 3 for name, value in each.items()}, seed=2)
    wrong = trained(lambda _, each: {name: value.roll(1, 0) for name, value in each.items()}, seed=2)
    shape = Shape("accumulating", micros=3)

    def guessed(run: Run, script: str = "") -> str:
        return guess(Case(judged, shape, run, judged.judge(run), Script(script))).code

    assert guessed(tripled, "loss = cross_entropy(x, y, ignore_index=0)") == "scaled-loss"
    for loss in ("cross_entropy(x, y, ignore_index=0)", "mse_loss(x, y, reduction='sum')", "each.sum() / count"):
        assert guessed(wrong, f"x\nloss = {loss}") == "token-loss", loss
    for loss in ("each.sum(1) / 7", "mse_loss(x, y)  # ignore_index=0", "mse_loss("):
        assert guessed(wrong, f"torch.nn.utils.clip_grad_norm_(p, 1)\nloss = {loss}") == "by-pass", loss
    judged.reference.steps[1].random = True
    assert guessed(wrong) == "random"
