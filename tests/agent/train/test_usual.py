"""After the first steps of an attempt, observers hear of a batch only if it differs from earlier ones."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, JobView, Observer

from .test_stepping import Examples, job

STEPS = 120
LATE = 105  # after the first hundred steps, and not a multiple of ten

Act = Callable[[torch.nn.Linear, torch.optim.SGD], None]


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


class Listener(Observer):
    steps: ClassVar[list[int]] = []

    def batch_ends(self, event: BatchEnd) -> Habits:
        self.steps.append(event.step)
        return ()


def test_observers_of_a_correct_loop_are_rarely_called() -> None:
    this = job()
    loader = this.loader(Examples(10 * STEPS), batch_size=10)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    this.prepare(model, optimizer)
    this._engine.observers.watch([Listener], JobView([], [], list))
    for _ in this.epochs(1):
        for x, _ in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(set(Listener.steps)) == [*range(101), 110]
