"""A second backward pass that reaches the job's parameters keeps later steps in one piece. Other passes cost nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import mse_loss

from .test_stepping import Examples, job, plain, prepared, same

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
