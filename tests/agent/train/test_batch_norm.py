"""`job.wrap(model, batch_norm=N)`: groups of N examples, on any number of replicas and in any micro-batches."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent.train.data.batches import Limits, group_sizes, shape_step, starting
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.batch_norm import GroupedNorms
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from .test_scripts import FOLDER, Run, assert_same

SCRIPT = (FOLDER / "grouped.py").read_text()


# -- the dealing -------------------------------------------------------------------------------------------------------


def groups_of(rows: list[int], group: int) -> list[frozenset[int]]:
    """As a layer forms them."""
    sizes = group_sizes(len(rows), group)
    whole = sizes.count(group)
    result = [frozenset(rows[first : whole * group : whole]) for first in range(whole)]
    begin = whole * group
    for size in sizes[whole:]:
        result.append(frozenset(rows[begin : begin + size]))
        begin += size
    return result


@settings(deadline=None)
@given(
    total=st.integers(1, 200), replicas=st.integers(1, 6), group=st.integers(2, 9), more=st.integers(0, 60),
    sample=st.booleans(),
)  # fmt: skip
def test_the_groups_of_a_step_depend_on_nothing_but_its_examples(
    total: int, replicas: int, group: int, more: int, sample: bool
) -> None:
    examples = [1000 + place for place in range(total)]
    bound = group + more
    configuration = starting(Limits(total, total, bound, replicas, True, group))
    steps = [
        shape_step(0, 0, examples, configuration, replicas, rank, sample, most=bound, group=group)
        for rank in range(replicas)
    ]
    whole = shape_step(0, 0, examples, starting(Limits(total, total, total, 1, True, group)), 1, 0, False, group=group)

    assert list(whole.micros[0].indices) == examples, "alone, a batch keeps its order"
    micros = [list(micro.indices) for step in steps for micro in step.micros if micro.indices]
    assert sorted(place for micro in micros for place in micro) == examples
    groups = {item for micro in micros for item in groups_of(micro, group)}
    assert groups == set(groups_of(examples, group))
    assert max(map(len, micros)) <= max(bound, 3), "three: a pair and the one that is left"
    assert len({len(step.micros) for step in steps}) == 1
    assert sum(micro.weight for step in steps for micro in step.micros) / replicas == pytest.approx(1.0)
    assert total == 1 or all(len(item) > 1 for item in groups)


# -- whole trainings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [24, 8])
def test_weights_and_running_statistics_are_those_of_one_replica_after_replicas_1_2_3_2_1(
    local: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script, cut_script = tmp_path / "grouped.py", tmp_path / "cut.py"
    script.write_text(SCRIPT)
    cut_script.write_text(SCRIPT.replace("24, 24  #", f"24, {local}  #"))
    undisturbed, resized = Run(tmp_path / "undisturbed", script), Run(tmp_path / "resized", cut_script)
    undisturbed.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate(zip((1, 2, 3, 2, 1), (3, 4, 4, 3, 0), strict=True), start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(set(resized.stops)) == 4
    assert_same(undisturbed, resized)
    assert undisturbed.habits == resized.habits == set()


# -- the layer ---------------------------------------------------------------------------------------------------------

GROUP = 4


class Body:
    """The calls of the loop around one step of one replica."""

    def __init__(self, *models: nn.Module) -> None:
        self.norms = GroupedNorms()
        for model in models:
            self.norms.convert(model, GROUP)
        self.norms.collect(models, None)
        self.norms.begin_step()

    def run(self, loss: Any, rows: int, *, counted: int | None = None, last: bool = True) -> None:
        """A micro-batch of so many rows. `loss`: computes it."""
        self.norms.enter(rows)
        loss().backward()
        self.norms.pass_ended(rows if counted is None else counted, last=last)


def by_hand(layer: Any, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What plain batch norm makes of each group, and the means of its statistics, weighted by examples."""
    output, mean, variance = torch.empty_like(batch), layer.running_mean * 0, layer.running_mean * 0
    for group in map(sorted, groups_of(list(range(len(batch))), GROUP)):
        part = batch[group]
        output[group] = functional.batch_norm(part, None, None, layer.weight, layer.bias, training=True)
        columns = part.detach().movedim(1, 0).flatten(1)
        mean += columns.mean(1) * len(group) / len(batch)
        variance += columns.var(1) * len(group) / len(batch)
    return output, mean.detach(), variance.detach()


KINDS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, ()),
    "1d-length": (nn.BatchNorm1d, (5,)),
    "2d": (nn.BatchNorm2d, (3, 2)),
    "2d-last": (nn.BatchNorm2d, (3, 2)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
    "3d-last": (nn.BatchNorm3d, (2, 3, 2)),
}


@pytest.mark.parametrize("rows", [4, 12, 14, 13, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_normalises_each_group_as_plain_batch_norm(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    make, extent = KINDS[kind]
    layer: Any = make(6).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    plain = copy.deepcopy(layer)
    batch = torch.randn(rows, 6, *extent, dtype=torch.float64)
    if kind.endswith("last"):
        batch = batch.movedim(1, -1).contiguous().movedim(-1, 1)
    weights = torch.randn_like(batch)
    ours, theirs = batch.clone().requires_grad_(), batch.clone().requires_grad_()
    expected, mean, variance = by_hand(plain, theirs)
    (expected * weights).sum().backward()
    outputs: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        outputs.append(layer(ours))
        return (outputs[0] * weights).sum()

    Body(layer).run(loss, rows)

    torch.testing.assert_close(outputs[0], expected)
    assert outputs[0].stride() == batch.stride()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(layer.get_parameter(name).grad, parameter.grad)
    torch.testing.assert_close(layer.running_mean, 0.1 * mean)
    torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * variance)
    assert layer.num_batches_tracked == 1
    assert layer.state_dict().keys() == plain.state_dict().keys()
    make(6).double().load_state_dict(layer.state_dict())


def net() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()


def rows(count: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_mean(model: Any, *batches: torch.Tensor) -> torch.Tensor:
    """The running mean after one update from all of these rows."""
    with torch.no_grad():
        return 0.1 * model[0](torch.cat(batches)).mean(0)


def test_outside_of_a_body_and_in_eval_mode_a_layer_is_plain() -> None:
    plain, grouped = net(), net()
    body = Body(grouped)
    batch = rows(8)
    torch.testing.assert_close(grouped(batch), plain(batch), rtol=0, atol=0)
    torch.testing.assert_close(grouped.state_dict(), plain.state_dict(), rtol=0, atol=0)
    plain.eval()
    grouped.eval()
    body.norms.enter(8)
    torch.testing.assert_close(grouped(batch), plain(batch), rtol=0, atol=0)
    assert repr(type(grouped[1]).__mro__).count("torch.nn.modules.batchnorm.BatchNorm1d") == 1


def test_running_statistics_change_once_in_a_step_by_the_micro_batches_that_count() -> None:
    model = net()
    body = Body(model)
    expected = expected_mean(model, rows(4), rows(8, 3))
    body.run(lambda: model(rows(4)).sum(), 4, last=False)
    body.run(lambda: model(rows(2, 9)).sum(), 2, counted=0, last=False)
    assert model[1].running_mean.abs().sum() == 0
    body.run(lambda: model(rows(8, 3)).sum(), 8)
    torch.testing.assert_close(model[1].running_mean, expected)
    assert model[1].num_batches_tracked == 1


def test_a_pass_counts_if_a_backward_call_follows_and_once_if_it_is_computed_again() -> None:
    model = net()
    body = Body(model)
    expected = expected_mean(model, rows(8), rows(8, 3))
    body.run(lambda: checkpoint(model, rows(8).requires_grad_(), use_reentrant=False).sum(), 8)
    torch.testing.assert_close(model[1].running_mean, expected_mean(model, rows(8)))
    body.run(lambda: checkpoint(model, rows(8, 3).requires_grad_(), use_reentrant=False).sum(), 8)
    torch.testing.assert_close(model[1].running_mean, expected)
    model(rows(8, 4))  # perhaps an accuracy
    body.norms.leave(drop=False)
    torch.testing.assert_close(model[1].running_mean, expected)


def test_a_second_pass_with_momentum_0_as_in_sam_does_not_count() -> None:
    model = net()
    body = Body(model)
    expected = expected_mean(model, rows(8))
    body.run(lambda: model(rows(8)).sum(), 8)
    model[1].momentum = 0
    body.run(lambda: model(rows(8, 3)).sum(), 8)
    model[1].momentum = 0.1
    torch.testing.assert_close(model[1].running_mean, expected)


def test_a_step_that_is_taken_back_leaves_no_statistics_and_unused_layers_stay() -> None:
    model, other = net(), net()
    other[1].running_mean.fill_(7.0)
    body = Body(model, other)
    body.run(lambda: model(rows(8)).sum(), 8)
    assert model[1].running_mean.abs().sum() > 0
    assert torch.equal(other[1].running_mean, torch.full((6,), 7.0, dtype=torch.float64))
    assert other[1].num_batches_tracked == 0
    body.norms.leave(drop=True)
    assert model[1].running_mean.abs().sum() == 0
    assert model[1].num_batches_tracked == 0


def test_groups_under_autocast_have_running_statistics_in_single_precision() -> None:
    model = net().float()
    body, batch = Body(model), rows(12).float()
    body.norms.enter(12)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(batch)
    assert half.dtype == torch.bfloat16
    assert model[1].statistics.dtype == torch.float32
    torch.testing.assert_close(half.float(), model(batch), rtol=0.05, atol=0.05)


def compare_compiled() -> None:
    """Raises if a compiled model has other gradients or running statistics, or no graph of its own."""
    torch.manual_seed(1)
    convolution = nn.Sequential(nn.Conv2d(3, 6, 2), nn.BatchNorm2d(6), nn.Tanh())
    images = torch.randn(12, 3, 4, 4).to(memory_format=torch.channels_last)
    for model, batch in ((net().float(), rows(12).float()), (convolution, images)):
        body = Body(model)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        results: list[list[torch.Tensor]] = []
        for function in (model, compiled):
            results.append([])
            for count in (12, 10, 12, 9, 3):
                body.norms.begin_step()
                model.zero_grad()
                part = batch[:count]
                body.run(lambda part=part, function=function: function(part).square().sum(), count)
                state = [item.clone() for item in model.state_dict().values()]
                results[-1] += [*state, *(item.grad.clone() for item in model.parameters())]
                body.norms.leave(drop=True)
        torch.testing.assert_close(results[1], results[0])


def test_a_compiled_model_has_the_same_groups() -> None:
    """In a process of its own, because torch.compile's modules stay loaded."""
    code = f"from {__name__} import compare_compiled; compare_compiled()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


# -- refused, or told --------------------------------------------------------------------------------------------------


def job_of(batch: int = 8, **options: Any) -> tuple[Job, Any]:
    """A job and its loader."""
    job = Job(Environment(), torch.device("cpu"), 0, {})
    return job, job.loader(TensorDataset(rows(32).float()), batch_size=batch, **options)


@pytest.mark.parametrize("size", [0, 1, -1, True, 2.5, "32"])
def test_a_size_that_makes_no_groups_is_refused(size: Any) -> None:
    with pytest.raises(GpqTrainError, match="batch_norm must be a whole number of at least 2, not "):
        job_of()[0].wrap(net(), batch_norm=size)


@pytest.mark.parametrize("options", [{"batch": 8}, {"batch": 32, "max_local_batch": 8}])
def test_groups_larger_than_a_batch_are_refused(options: dict[str, Any]) -> None:
    job, _ = job_of(**options)
    model = job.wrap(net().float(), batch_norm=16)
    with pytest.raises(GpqTrainError, match="batch_norm=16 is more than the 8 examples that a GPU may get at once"):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_cannot_go_together_is_refused() -> None:
    job, _ = job_of()
    with pytest.raises(GpqTrainError, match="batch_norm= and sync_batch_norm= were both given"):
        job.wrap(net(), batch_norm=4, sync_batch_norm=True)
    job.wrap(net(), batch_norm=4)
    with pytest.raises(GpqTrainError, match="batch_norm is 4 for one model and 8 for another"):
        job.wrap(net(), batch_norm=8)
    job = Job(Environment(), torch.device("cpu"), 0, {})
    model = job.wrap(net(), batch_norm=4)
    for call in (job.should_stop, lambda: job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))):
        with pytest.raises(GpqTrainError, match=r"batch_norm= needs job\.loader"):
            call()


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("twice", "a layer with 16 rows for 8 examples"),
        ("copy", "a layer of a model that job.prepare() was not given"),
        ("custom", "1"),
        ("late", "1"),
        ("", ""),
    ],
)
def test_a_layer_whose_groups_depend_on_the_shape_is_told(
    kind: str, detail: str, capfd: pytest.CaptureFixture[str]
) -> None:
    class Custom(nn.BatchNorm1d):
        pass

    job, loader = job_of()
    model = net().float()
    if kind in ("custom", "late"):
        model[1] = Custom(6)
    model = job.wrap(model, batch_norm=4)
    model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    teacher = copy.deepcopy(model)
    for epoch in job.epochs(2):
        model.train(kind != "late" or epoch == 1)
        for (x,) in loader:
            loss = model(torch.cat([x, x]) if kind == "twice" else x).sum()
            if kind == "copy":
                teacher(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    lines = [line for line in capfd.readouterr().err.splitlines() if "computes its statistics" in line]
    assert len(lines) == bool(kind)
    assert all(f"batch norm ({detail}) computes" in line for line in lines)
