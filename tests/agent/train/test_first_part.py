"""The first part of the first cut step of an epoch: what changed in it is told, and later steps stay whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.loop.first_part import RUINED, RuinedWeights
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from torch.utils._python_dispatch import TorchDispatchMode

from .test_stepping import Examples, job, prepared


class Part:
    """Keeps tensors and numbers, like an average of weights. `copied`: its state_dict copies them."""

    def __init__(self, *, copied: bool = False, **state: Any) -> None:
        self.state, self.copied = state, copied

    def state_dict(self) -> dict[str, Any]:
        if not self.copied:
            return {"nested": [self.state]}
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state if self.copied else state["nested"][0]


def train(part: Part, in_body: Callable[[Any], None], epochs: int = 1) -> tuple[set[str], list[int]]:
    """Return the habits that were told, and the number of examples in each loop body. A step has two bodies."""
    this = job()
    this.state(part, name="part")
    this.state(Part(mean=torch.zeros(3), count=1), name="idle")
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    sizes = []
    for _ in this.epochs(epochs):
        for x, y in loader:
            sizes.append(len(x))
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            in_body(model)
    return {f"{code} {detail}" for code, detail in this._engine.shape.freedoms._agreed.items()}, sizes


def in_place(part: Part) -> None:
    part.state["mean"].mul_(0.9)


def past_its_version(part: Part) -> None:
    part.state["mean"].data.mul_(0.9)


def replaced(part: Part) -> None:
    part.state["mean"] = 0.9 * part.state["mean"]


def counted(part: Part) -> None:
    part.state["count"] += 1


@pytest.mark.parametrize("copied", [False, True], ids=["its tensors", "copies"])
@pytest.mark.parametrize("change", [in_place, past_its_version, replaced, counted])
def test_a_part_that_changes_in_the_first_part_is_named(change: Callable[[Part], None], copied: bool) -> None:
    part = Part(copied=copied, mean=torch.ones(3), count=1, name="plain")
    assert train(part, lambda model: change(part)) == ({"state-in-pieces part"}, [6, 6, 12, 12, 12])


def test_parameters_that_change_past_their_version_are_noticed() -> None:
    def decay(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(0.99)

    assert train(Part(mean=torch.ones(3)), decay) == ({"hand-step "}, [6, 6, 12, 12, 12])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_part_that_stays_as_it_is_costs_nothing(value: float) -> None:
    part = Part(mean=torch.full((3,), value), lock=threading.Lock(), phase=torch.ones(2, dtype=torch.complex64))
    assert train(part, lambda model: None) == (set(), 8 * [6])


def test_a_part_that_changes_first_in_a_later_epoch_is_named_there() -> None:
    part, bodies = Part(mean=torch.ones(3)), list[int]()

    def late(model: Any) -> None:
        bodies.append(len(bodies))
        if len(bodies) > 8:  # in the second epoch
            in_place(part)

    told, sizes = train(part, late, epochs=2)
    assert (told, sizes[:8], sizes[8:]) == ({"state-in-pieces part"}, 8 * [6], [6, 6, 12, 12, 12])


class Largest(TorchDispatchMode):
    """The largest result of an operation that is no view, in elements."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result._base is None and "detach" not in str(func):
            self.elements = max(self.elements, result.numel())
        return result


def test_a_look_copies_no_tensor() -> None:
    this = job()
    part = this.state(Part(mean=torch.zeros(64, 64)))
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, _, _ = prepared(this)
    loop = this._engine.loop
    with Largest() as largest:
        state = loop._first_part._state()
    assert 0 < largest.elements <= len(list(model.parameters())) + 1
    assert len(state.parameters) == len(list(model.parameters()))
    del part, loader


def test_weights_that_a_cut_step_makes_infinite_end_the_attempt_and_not_the_job(tmp_path: Path) -> None:
    """SAM by hand divides by the norm of a gradient, which is zero in the first part."""

    def train_by_hand(this: Job) -> list[int]:
        loader = this.loader(Examples(24), batch_size=12, max_local_batch=6, fixed_batch=True)
        model, optimizer, _ = prepared(this)
        sizes = []
        for _ in this.epochs(1):
            for x, y in loader:
                sizes.append(len(x))
                torch.nn.functional.mse_loss(model(x), y).backward()
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad / parameter.grad.norm())
                optimizer.step()
                optimizer.zero_grad()
        return sizes

    environment = Environment(checkpoint_dir=str(tmp_path / "checkpoints"))
    first = Job(environment, torch.device("cpu"), 0, {})
    with pytest.raises(RuinedWeights) as caught:
        train_by_hand(first)
    # Not from the start, because the variables of its run would stay in this process.
    first._engine.runtime.environment = environment._replace(run_dir=str(tmp_path))
    first._engine.failures.failed(caught.value)
    assert wire.read_json(str(tmp_path / wire.EXCUSED)) == {"note": RUINED}
    assert train_by_hand(Job(environment, torch.device("cpu"), 0, {})) == [12, 12]
