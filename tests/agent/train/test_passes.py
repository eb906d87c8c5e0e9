"""A second backward pass that reaches the job's parameters keeps later steps in one piece. Other passes cost nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from gpq_agent.train.errors import GpqTrainError
from torch.nn.functional import mse_loss

from .test_stepping import Examples, job, network, plain, prepared, same

Loss = Callable[[], torch.Tensor]
IN_PIECES = {"accumulate", "split"}
WHOLE, CUT = 4 * [12], 8 * [6]  # examples in each loop body of an epoch


def other(loss: Loss) -> None:
    """A pass of another model, as of a probe that is not part of the training."""
    torch.nn.Linear(3, 1)(torch.ones(1, 3)).sum().backward()


def before(loss: Loss) -> None:
    other(loss)
    loss().backward()


def after(loss: Loss) -> None:
    loss().backward()
    other(loss)


def around(loss: Loss) -> None:
    before(loss)
    other(loss)


def twice(loss: Loss) -> None:
    (0.25 * loss()).backward()
    (0.75 * loss()).backward()


def late(loss: Loss) -> None:
    before(lambda: 0.25 * loss())
    after(lambda: 0.75 * loss())


def train(passes: Callable[[Loss], None], local: int | None) -> tuple[set[str], list[int], torch.nn.Module]:
    """The freedoms that the loop lost, the number of examples in each loop body, and the trained model."""
    this, sizes = job(), []
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=local, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(2):
        for x, y in loader:
            sizes.append(len(x))
            passes(lambda: mse_loss(model(x), y))  # noqa: B023
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return this._engine.shape.freedoms.lost, sizes, model


@pytest.mark.parametrize("passes", [before, after, around])
@pytest.mark.parametrize("local", [None, 6])
def test_a_pass_of_another_model_is_no_second_pass(passes: Callable[[Loss], None], local: int | None) -> None:
    lost, sizes, model = train(passes, local)
    assert (lost, sizes) == (set(), 2 * (CUT if local else WHOLE))
    assert same(model, plain(Examples(48), 12, 2))


@pytest.mark.parametrize("passes", [twice, late])
def test_a_second_pass_keeps_every_step_after_the_first_whole(passes: Callable[[Loss], None]) -> None:
    lost, sizes, _ = train(passes, 6)
    assert (lost, sizes) == (IN_PIECES, [6, 6, *WHOLE[1:], *WHOLE])


# -- what else can befall the sum of a step ----------------------------------------------------------------------------


class Twice(torch.autograd.Function):
    """Adds two vectors, and gives both the memory of one gradient."""

    @staticmethod
    def forward(context: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].clone()
        return gradient, gradient.detach()


class Shift(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.first, self.second = (torch.nn.Parameter(torch.zeros(1, 1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.body(x) + Twice.apply(self.first, self.second)
        return answer


def shifted(local: int | None, *, create_graph: bool) -> torch.nn.Module:
    this, model = job(), Shift()
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=local, fixed_batch=True)
    model, optimizer, _ = this.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in this.epochs(2):
        for x, y in loader:
            mse_loss(model(x), y).backward(create_graph=create_graph)
            if not this.at_step:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                for item in model.parameters():
                    assert item.grad is not None
                    item.grad.add_(7.0)  # without effect
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.filterwarnings("ignore:Using backward.* with create_graph")
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_that_share_memory_or_have_a_graph_are_added_once(create_graph: bool) -> None:
    whole = shifted(None, create_graph=create_graph)
    assert same(shifted(3, create_graph=create_graph), whole)


class Breaks(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        raise MemoryError


def caught(loss: torch.Tensor, place: int, failing: int) -> None:
    with suppress(MemoryError):
        (Breaks.apply(loss) if place == failing else loss).backward()


def missing(loss: torch.Tensor, place: int, failing: int) -> None:
    if place != failing:
        loss.backward()


@pytest.mark.parametrize(
    ("call", "failing", "message"),
    [(caught, 1, "a backward() failed"), (caught, 2, "a backward() failed"), (missing, 2, "without backward()")],
)
def test_a_step_that_misses_a_part_of_its_batch_is_refused(call: Any, failing: int, message: str) -> None:
    this = job()
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=4, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    before = [item.detach().clone() for item in model.parameters()]

    def loop() -> None:
        for _ in this.epochs(1):
            for place, (x, y) in enumerate(loader):
                call(mse_loss(model(x), y), place, failing)
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(GpqTrainError, match=re.escape(message)):
        loop()
    assert all(map(torch.equal, before, model.parameters()))
