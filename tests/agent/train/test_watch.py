"""What a job notices of its loop: also late, and with objects of the script that raise. `tests/habits` has the loops."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpq_agent.train
import pytest
import torch
from gpq_agent.train.habits.freedoms import PROVEN
from gpq_agent.train.habits.table import HABITS

from .test_stepping import Examples, job, prepared

STEPS = 120
LATE = 105  # after the first hundred steps, and not a multiple of ten

Act = Callable[[torch.nn.Linear, torch.optim.SGD], None]


def reported(tree: ast.Module) -> Iterator[str]:
    """The codes that this module reports."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("_report", "alone", "lose", "Habit"):
            yield from (item.value for item in ast.walk(node.args[0]) if isinstance(item, ast.Constant))


def test_every_habit_in_the_table_is_reported_somewhere_and_no_other() -> None:
    train = Path(gpq_agent.train.__file__).parent
    codes = {code for path in train.rglob("*.py") for code in reported(ast.parse(path.read_text()))}
    assert codes - {PROVEN} == set(HABITS)


def other_optimizer(model: torch.nn.Linear, optimizer: torch.optim.SGD) -> None:
    torch.optim.SGD([model.bias], lr=0.1).step()
    optimizer.step()


def no_step(model: torch.nn.Linear, optimizer: torch.optim.SGD) -> None:
    pass


def second_step(model: torch.nn.Linear, optimizer: torch.optim.SGD) -> None:
    optimizer.step(lambda: torch.tensor(0.0))


def further_group(model: torch.nn.Linear, optimizer: torch.optim.SGD) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    optimizer.step()


def other_rate(model: torch.nn.Linear, optimizer: torch.optim.SGD) -> None:
    rate, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], 0.05
    optimizer.step()
    optimizer.param_groups[0]["lr"] = rate  # so nothing shows after the body


ACTS: dict[str, Act] = {
    "other-optimizer": other_optimizer,
    "hand-accumulation": no_step,
    "closure": second_step,
    "late-group": further_group,
    "own-rate": other_rate,
}


@pytest.mark.parametrize("code", ACTS)
def test_a_habit_that_begins_late_is_noticed_in_its_batch(code: str) -> None:
    this = job()
    loader = this.loader(Examples(10 * STEPS), batch_size=10)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    this.prepare(model, optimizer)
    noticed = []
    for _ in this.epochs(1):
        for number, (x, _) in enumerate(loader):
            noticed.append(this._engine.shape.freedoms.noticed(code))
            model(x).square().mean().backward()
            if number == LATE:
                ACTS[code](model, optimizer)
            else:
                optimizer.step()
            optimizer.zero_grad()
    assert noticed.index(True) == LATE + 1


class Unreadable:
    """A hook that does nothing, and cannot be looked at."""

    @property
    def __module__(self) -> str:  # type: ignore[override]
        raise LookupError("of its own")

    def __call__(self, gradient: torch.Tensor) -> None:
        pass


def test_training_continues_unwatched_if_an_object_of_the_script_raises(capsys: pytest.CaptureFixture[str]) -> None:
    this = job()
    loader = this.loader(Examples(40), batch_size=10)
    model, optimizer, _ = prepared(this)
    next(model.parameters()).register_hook(Unreadable())
    for _ in this.epochs(1):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert this.step == 4
    said = capsys.readouterr().err
    assert said.count("gpq no longer watches what the loop does, and training continues (LookupError: of its own)") == 1


class Part:
    """Keeps tensors, like an average of weights."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_part_that_cannot_be_saved_does_not_end_the_training() -> None:
    this = job()
    this.state(Part(lock=threading.Lock()), name="locked")
    loader = this.loader(Examples(48), batch_size=12, max_local_batch=6, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(1):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert this.step == 4
