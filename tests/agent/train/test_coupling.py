"""Which losses are means of what their examples lose: read off the graph, for batches as large as a layer and others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpq_agent.train.habits.gradients.example_mixing import mixes_examples
from gpq_agent.train.habits.gradients.loss_divisors import divisors
from torch import Tensor, nn
from torch.nn import functional

SIZES = (16, 5)  # the layers have 16


class Batch:
    """Outputs (4 each), targets, weights and classes of so many examples."""

    def __init__(self, examples: int) -> None:
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(1)
        self.examples = examples
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
        self.x = torch.randn(examples, 6, generator=generator)
        self.y = torch.randn(examples, 1, generator=generator)
        self.weights = torch.rand(examples, generator=generator)
        self.classes = torch.randint(0, 4, (examples,), generator=generator)
        self.learnt = nn.Parameter(torch.zeros(2))
        self.out: Tensor = self.model(self.x)
        self.one = self.out[:, :1]
        self.mse = functional.mse_loss(self.one, self.y)


def _entropy(batch: Batch) -> Tensor:
    mean = batch.out.softmax(1).mean(0)
    return (mean * mean.log()).sum()


def _infonce(batch: Batch, other: Tensor) -> Tensor:
    return functional.cross_entropy(batch.out @ other.T, torch.arange(batch.examples))


def _barlow(batch: Batch) -> Tensor:
    centred = (batch.out - batch.out.mean(0)) / batch.out.std(0)
    return (centred.T @ centred / batch.examples).square().sum()


def _dice(batch: Batch) -> Tensor:
    found = batch.one.sigmoid()
    return 1 - 2 * (found * batch.y).sum() / (found.sum() + batch.y.sum())


def _penalty(batch: Batch) -> Tensor:
    x = batch.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(batch.model(x).sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


COUPLED: dict[str, Any] = {
    "root": lambda b: b.mse.sqrt(),
    "log": lambda b: b.mse.log(),
    "flooding": lambda b: (b.mse - 0.2).abs() + 0.2,
    "floor": lambda b: b.mse + b.out.square().mean().clamp(min=0.5),
    "product": lambda b: b.mse * b.out.abs().mean(),
    "larger": lambda b: torch.maximum(b.mse, b.out.abs().mean()),
    "norm": lambda b: (b.one - b.y).norm(),
    "variance": lambda b: b.mse + (1 - b.out.std(0)).relu().mean(),
    "centred": lambda b: functional.mse_loss(b.one - b.one.mean(0), b.y),
    "barlow": _barlow,
    "hardest": lambda b: b.out.square().mean(1).topk(3).values.mean(),
    "listwise": lambda b: -(b.y.softmax(0) * b.one.log_softmax(0)).sum(),
    "pairs": lambda b: functional.softplus(b.one - b.one.T).mean(),
    "distances": lambda b: torch.cdist(b.out, b.out).mean(),
    "contrastive": lambda b: _infonce(b, functional.normalize(b.out, dim=1)),
    "contrastive, fixed keys": lambda b: _infonce(b, torch.ones(b.examples, 4)),
    "dice": _dice,
    "entropy of the mean": _entropy,
}

MEANS: dict[str, Any] = {
    "mse": lambda b: b.mse,
    "cross-entropy": lambda b: functional.cross_entropy(b.out, b.classes),
    "smoothed": lambda b: functional.cross_entropy(b.out, b.classes, label_smoothing=0.1),
    "learned weights of losses": lambda b: b.mse * torch.exp(-b.learnt[0]) + b.learnt[0] + b.out.abs().mean(),
    "norms of weights": lambda b: b.mse + 0.01 * sum(item.norm(2) for item in b.model.parameters()),
    "orthogonal weights": lambda b: b.mse + (b.model[2].weight.T @ b.model[2].weight - torch.eye(16)).norm(),
    "weighed": lambda b: b.out.square().mean(1) @ b.weights / b.weights.sum(),
    "norm of each": lambda b: (b.out - 1).norm(dim=1).mean(),
    "distillation": lambda b: functional.kl_div(b.out.log_softmax(1), b.out.detach().softmax(1), reduction="batchmean"),
    "triplets": lambda b: functional.triplet_margin_loss(b.out, b.out.detach() + 1, b.out.detach() - 1),
    "clipped ratios": lambda b: -torch.min(b.one.exp() * b.y, b.one.exp().clamp(0.8, 1.2) * b.y).mean(),
    "variational": lambda b: b.mse - 0.5 * (1 + b.out - b.out.pow(2) - b.out.exp()).sum(1).mean(),
    "floor of each": lambda b: functional.mse_loss(b.one, b.y, reduction="none").clamp(min=0.1).mean(),
    "several": lambda b: torch.stack([b.mse, b.out.abs().mean()]).sum(),
    "prototypes": lambda b: torch.cdist(b.out, b.model[2].weight[:, :4]).min(1).values.mean(),
    "angles to classes": lambda b: functional.cross_entropy(
        functional.linear(functional.normalize(b.model[:4](b.x)), functional.normalize(b.model[2].weight)), b.classes
    ),
    "mean over time, which comes first": lambda b: functional.mse_loss(
        torch.stack([b.out] * 2 * b.examples).mean(0).tanh()[:, :1], b.y
    ),
    "as many places as examples": lambda b: torch.stack([b.out] * b.examples).mean(0).tanh().square().mean(),
    "by feature": lambda b: (b.out.square().mean(0) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(),
    "gradient penalty": _penalty,
}


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("loss", COUPLED)
def test_a_loss_that_bends_the_sum_over_its_batch_is_seen(loss: str, examples: int) -> None:
    assert mixes_examples(COUPLED[loss](Batch(examples)), examples)


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("loss", MEANS)
def test_a_mean_over_examples_is_left_alone(loss: str, examples: int) -> None:
    assert not mixes_examples(MEANS[loss](Batch(examples)), examples)


@pytest.mark.parametrize("how", ["product", "einsum", "nansum"])
def test_a_weighted_sum_is_divided_by_what_the_script_divides_it_by(how: str) -> None:
    batch = Batch(16)
    each, whole = batch.out.square().mean(1), batch.weights.sum()
    sums = {
        "product": each @ batch.weights,
        "einsum": torch.einsum("b,b->", each, batch.weights),
        "nansum": (each * batch.weights).nansum(),
    }
    assert [item.value for item in divisors(sums[how] / whole)] == pytest.approx([float(whole)])
