"""The gradient noise scale: its arithmetic, and the probe in real replicas compared with exact statistics."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from gpq_agent.train.gradients.noise_scale import NoiseScale
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.agent.train import probe_runs
from tests.support.ports import free_port

positive = st.floats(min_value=1e-6, max_value=1e6)


def observe(scale: NoiseScale, sqr: float, var: float, *, batch: int, count: int, **flags: Any) -> None:
    """The expected norms for a true squared gradient `sqr` and a variance `var` of one example."""
    scale.observe(sqr + var / batch, sqr + var / (batch * count), batch=batch, count=count, **flags)


def learned(sqr: float, var: float, *, batch: int = 32, count: int = 4, base: int = 32, size: int = 0) -> NoiseScale:
    """After enough steps that noise no longer matters."""
    scale = NoiseScale(base, size, window=10**15)
    observe(scale, sqr, var, batch=batch, count=count, steps=10**9)
    return scale


# -- arithmetic --------------------------------------------------------------------------------------------------------


@given(positive, positive, st.integers(1, 512), st.integers(2, 64))
def test_expected_norms_yield_both_statistics(sqr: float, var: float, batch: int, count: int) -> None:
    # The difference of the norms loses digits if one statistic is far smaller than the other.
    tolerance = 1e-9 * (sqr + var) * batch * count
    scale = learned(sqr, var, batch=batch, count=count)
    assert math.isclose(scale.var, var, rel_tol=1e-6, abs_tol=tolerance)
    if not scale.capped:
        assert math.isclose(scale.sqr, sqr, rel_tol=1e-6, abs_tol=tolerance)


def test_at_the_start_nothing_is_known_and_the_gain_is_one() -> None:
    scale = NoiseScale(32, 1000)
    assert (scale.sqr, scale.var, scale.samples, scale.noise_scale) == (0.0, 0.0, 0, 0.0)
    assert not scale.capped
    assert scale.gain(32) == scale.gain(4096) == 1.0


@given(positive, positive, st.integers(1, 100_000))
def test_the_gain_lies_between_one_and_the_ratio_of_batches(sqr: float, var: float, batch: int) -> None:
    gain = learned(sqr, var).gain(batch)
    low, high = sorted((1.0, batch / 32))
    assert low <= gain <= high


def test_the_gain_follows_the_formula_of_adascale() -> None:
    scale = learned(2.0, 640.0)
    assert scale.gain(256) == pytest.approx((640 / 32 + 2) / (640 / 256 + 2))


def test_drawing_without_replacement_is_corrected() -> None:
    sqr, var, size, batch, count = 1.0, 500.0, 1000, 50, 4
    # The variance of a mean shrinks as the data set runs out.
    local = sqr + var / batch * (size - batch) / size
    mean = sqr + var / (batch * count) * (size - batch * count) / size
    scale = NoiseScale(32, size)
    scale.observe(local, mean, batch=batch, count=count, steps=10**6)
    assert scale.sqr == pytest.approx(sqr)
    assert scale.var == pytest.approx(var)


def test_averages_are_taken_before_the_division() -> None:
    scale = NoiseScale(32, 0, window=10**12)
    observe(scale, 1.0, 10.0, batch=8, count=4)
    observe(scale, 3.0, 10.0, batch=8, count=4)
    assert scale.noise_scale == pytest.approx(10.0 / 2.0)


def test_the_window_is_counted_in_examples() -> None:
    small, large = NoiseScale(32, 0), NoiseScale(32, 0)
    for scale, batch in ((small, 8), (large, 32)):
        observe(scale, 1.0, 5.0, batch=64, count=2)
        for _ in range(4096 // (batch * 4)):
            observe(scale, 9.0, 5.0, batch=batch, count=4)
    assert small.sqr == pytest.approx(large.sqr, rel=0.02)


def test_old_statistics_fade_and_the_window_fills() -> None:
    scale = NoiseScale(1, 0)
    for _ in range(50):
        observe(scale, 1.0, 5.0, batch=1, count=2)
    for _ in range(500):
        observe(scale, 4.0, 50.0, batch=1, count=2)
    assert scale.sqr == pytest.approx(4.0, rel=1e-3)
    assert scale.var == pytest.approx(50.0, rel=1e-3)
    assert scale.samples == pytest.approx(100, rel=0.02)


def test_many_steps_at_once_weigh_as_much_as_single_steps() -> None:
    once, often = NoiseScale(32, 0, window=10**12), NoiseScale(32, 0, window=10**12)
    for scale in (once, often):
        observe(scale, 1.0, 5.0, batch=8, count=2)
    observe(once, 3.0, 7.0, batch=8, count=2, steps=10)
    for _ in range(10):
        observe(often, 3.0, 7.0, batch=8, count=2)
    assert once.samples == often.samples
    assert once.sqr == pytest.approx(often.sqr)
    assert once.var == pytest.approx(often.var)


def test_the_noise_scale_never_exceeds_the_number_of_examples() -> None:
    scale = NoiseScale(32, 0)
    observe(scale, 1e-9, 5.0, batch=16, count=2)
    assert scale.capped
    assert scale.noise_scale == pytest.approx(32)


def test_a_squared_gradient_below_the_noise_gives_a_lower_bound() -> None:
    scale = NoiseScale(32, 0)
    scale.observe(10.0, 1.0, batch=32, count=4)  # 4 * 1 - 10 < 0
    assert scale.capped
    assert scale.sqr > 0
    assert scale.noise_scale == pytest.approx(scale.samples)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_norms_that_are_not_finite_change_nothing(value: float) -> None:
    scale = learned(1.0, 5.0)
    before = scale.state_dict()
    scale.observe(value, 1.0, batch=8, count=2)
    scale.observe(1.0, value, batch=8, count=2)
    assert scale.state_dict() == before


def test_preconditioned_statistics_are_never_mixed_with_raw_ones() -> None:
    scale = NoiseScale(32, 0)
    observe(scale, 100.0, 1.0, batch=16, count=2)
    observe(scale, 1.0, 5.0, batch=16, count=2, preconditioned=True)
    assert scale.preconditioned
    assert scale.sqr == pytest.approx(1.0)


@given(st.lists(st.tuples(positive, positive, st.integers(1, 64), st.integers(2, 8)), min_size=1, max_size=8))
def test_a_restored_noise_scale_continues_unchanged(seen: list[tuple[float, float, int, int]]) -> None:
    scale = NoiseScale(32, 5000)
    for sqr, var, batch, count in seen:
        observe(scale, sqr, var, batch=batch, count=count, preconditioned=True)
    other = NoiseScale(32, 5000)
    other.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    for each in (scale, other):
        observe(each, 1.0, 2.0, batch=4, count=2, preconditioned=True)
    assert other.state_dict() == scale.state_dict()
    assert other.gain(640) == scale.gain(640)


# -- against exact statistics, in real replicas ------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_statistics_agree_with_per_example_gradients(replicas: int, tmp_path: Path) -> None:
    """One replica: both optimizers, with and without accumulation, bare or scaled and clipped.

    Two replicas measure four of these eight cases and the hook. Four replicas measure two cases. One and two also
    measure batch norm over groups.
    """
    torch.multiprocessing.spawn(probe_runs.accuracy, (replicas, str(tmp_path), free_port()), nprocs=replicas)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(replicas)]
    assert all(rank == ranks[0] for rank in ranks), "all replicas have the same statistics"
    expected = {probe_runs.label(*case): statistics(*case) for case in probe_runs.variants(replicas)}
    assert {label: {key: ranks[0][label][key] for key in row} for label, row in expected.items()} == expected
    if replicas == 2:
        check_hook(ranks[0]["behaviour"])


def statistics(optimizer: str, micro: int, loop: str) -> dict[str, Any]:
    """`clipped`: the fraction of steps that were clipped, which is all with habits and none without."""
    habits = loop == "habits"
    return {
        "var": pytest.approx(1.0, abs=0.05),
        "sqr": pytest.approx(1.0, abs=0.10),
        "samples": pytest.approx(1.0, abs=1e-3),
        "preconditioned": optimizer == "adamw",
        "told": 0,
        "clipped": 1.0 if habits else 0.0,
        "growth": 2.0 ** (probe_runs.STEPS // probe_runs.GROWTH) if habits else 1.0,
    }


def check_hook(facts: dict[str, Any]) -> None:
    assert facts["uneven"] < 1e-5, "weights make the gradient of uneven parts exact"
    assert facts["half"] == pytest.approx(1.0, abs=0.1), "half precision is summed in single precision"
    assert facts["broken"] == pytest.approx(1.0, abs=0.01), "a step that overflowed in one replica is left out"
    assert facts["scaled"] == pytest.approx(1.0, rel=1e-4), "the loss scale cancels out"
    assert facts["updated"] == pytest.approx(1.0, rel=1e-4), (
        "a loss scale that changes before the step ends does not count"
    )
    assert "more than one backward pass" in facts["twice"]["notice"], "two passes in a step switch the probe off"
    assert facts["twice"]["samples"] == 128
    assert "DDP cannot reduce a step of this model" in facts["unused"]["adaptive"], "it is told"
    assert facts["unused"]["fixed"] == "", "nobody needs the noise scale there"
    assert facts["ready"], "the last bucket is ready within the backward pass"
    assert "communication hook of its own" in facts["taken"], "a hook of the user is refused"


# -- one replica -------------------------------------------------------------------------------------------------------


def single(net: nn.Module, optimizer: str = "sgd") -> probe_runs.Loop:
    return probe_runs.Loop(net, probe_runs.make_optimizer(optimizer, net), NoiseScale(8, probe_runs.EXAMPLES))


def accumulate(
    loop: probe_runs.Loop,
    parts: list[slice],
    *,
    sampled: bool,
    clip: bool = False,
    net: nn.Module | None = None,
    passes: int = 1,
) -> None:
    """Take one step with a micro-batch for each part. `net`: the part of the model to use."""
    inputs, targets = probe_runs.data()
    counts = [part.stop - part.start for part in parts]
    inverse = sum(1 / count for count in counts) / len(counts)
    step = probe_runs.step_of(counts, sum(counts), sampled=sampled, inverse=inverse)
    for place in loop.micro_batches(step):
        for _ in range(passes):
            probe_runs.loss_of(net or loop.net, inputs[parts[place]], targets[parts[place]]).backward()
        if clip:
            nn.utils.clip_grad_norm_(loop.net.parameters(), 1e-3)


def whole(parts: list[slice]) -> torch.Tensor:
    inputs, targets = probe_runs.data()
    net = probe_runs.model()
    probe_runs.loss_of(net, inputs[: parts[-1].stop], targets[: parts[-1].stop]).backward()
    return probe_runs.flat_gradient(net)


@pytest.mark.parametrize("parts", [[slice(0, 10), slice(10, 16)], [slice(0, 8), slice(8, 16)]])
def test_the_estimate_from_uneven_parts_solves_the_two_expectations(parts: list[slice]) -> None:
    loop = single(probe_runs.model())
    accumulate(loop, parts, sampled=True)
    loop.probe.collect()
    inputs, targets = probe_runs.data()
    norms = []
    for part in parts:
        other = probe_runs.model()
        probe_runs.loss_of(other, inputs[part], targets[part]).backward()
        norms.append(float(probe_runs.flat_gradient(other).square().sum()))
    sizes = [part.stop - part.start for part in parts]
    inverse = sum(1 / size for size in sizes) / 2
    mean = float(whole(parts).square().sum())
    assert loop.scale.var == pytest.approx((sum(norms) / 2 - mean) / (inverse - 1 / 16), rel=1e-3)
    assert loop.scale.samples == 16


def test_norms_are_measured_before_the_user_clips() -> None:
    variances = []
    for clip in (False, True):
        loop = single(probe_runs.model())
        accumulate(loop, [slice(0, 8), slice(8, 16)], sampled=True, clip=clip)
        loop.probe.collect()
        variances.append(loop.scale.var)
    assert variances[0] == variances[1] > 0


def test_steps_that_are_not_sampled_measure_nothing() -> None:
    loop = single(probe_runs.model())
    accumulate(loop, [slice(0, 8), slice(8, 16)], sampled=False)
    loop.probe.collect()
    assert loop.scale.samples == 0


def test_a_single_micro_batch_on_one_replica_measures_nothing() -> None:
    loop = single(probe_runs.model())
    accumulate(loop, [slice(0, 8)], sampled=True)
    loop.probe.collect()
    assert loop.scale.samples == 0
    assert not loop.probe.notice


def test_adam_is_not_measured_before_its_moments_are_ripe() -> None:
    loop = single(probe_runs.model(), "adamw")
    accumulate(loop, [slice(0, 8), slice(8, 16)], sampled=True)
    loop.probe.collect()
    assert loop.scale.samples == 0


def test_a_parameter_without_a_gradient_switches_the_probe_off_with_a_notice() -> None:
    net = nn.ModuleDict({"used": probe_runs.model(), "idle": nn.Linear(2, 2)})
    loop = single(net)
    accumulate(loop, [slice(0, 8), slice(8, 16)], sampled=True, net=net["used"])
    loop.probe.collect()
    assert "some parameters have no gradient" in loop.probe.notice
    assert loop.scale.samples == 0
    torch.testing.assert_close(probe_runs.flat_gradient(net), whole([slice(0, 8), slice(8, 16)]))


def test_sparse_gradients_switch_the_probe_off_with_a_notice() -> None:
    net = nn.EmbeddingBag(10, 3, sparse=True)
    loop = probe_runs.Loop(net, torch.optim.SGD(net.parameters(), lr=0.1), NoiseScale(8, 100))
    for _ in loop.micro_batches(probe_runs.step_of([2, 2], 4, sampled=True, inverse=1 / 2)):
        net(torch.tensor([[1, 2], [3, 4]])).square().sum().backward()
    assert "sparse" in loop.probe.notice
    assert net.weight.grad is not None
    assert net.weight.grad.is_sparse


def test_two_backward_passes_in_a_step_switch_the_probe_off_with_a_notice() -> None:
    loop = single(probe_runs.model())
    accumulate(loop, [slice(0, 8), slice(8, 16)], sampled=True, passes=2)
    loop.probe.collect()
    assert "more than one backward pass" in loop.probe.notice
    assert loop.scale.samples == 0
    assert loop.gradients.repeats
