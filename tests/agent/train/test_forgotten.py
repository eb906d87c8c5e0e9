"""Things that the script did not give to the job: what the search finds, and which code it does not run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpq_agent.train.habits.observer import JobView
from gpq_agent.train.habits.state.search import Search
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.runtime.termination import STOP_ORDERED
from torch.optim.lr_scheduler import ExponentialLR

from .test_stepping import Examples, Model, job

CALLED: list[str] = []  # code of foreign classes


def network() -> Model:
    """Has shapes that no other test uses, so that models left by other tests are no copies of it."""
    return torch.nn.Sequential(torch.nn.Linear(5, 11), torch.nn.Tanh(), torch.nn.Linear(11, 1))


def sgd(model: Model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def weights(model: Model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def train(after: Callable[[Any, int, Model, Any], None]) -> Any:
    """Train two epochs of six steps and return the engine. `after` gets engine, step number, model and optimizer."""
    gc.collect()
    this = job()
    loader = this.loader(Examples(48), batch_size=8, fixed_batch=True)
    model = network()
    model, optimizer, _ = this.prepare(model, sgd(model))
    count = 0
    for _ in this.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            count += 1
            after(this._engine, count, model, optimizer)
    return this._engine


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [2, 3])
def test_a_snapshot_renewed_now_and_then_is_not_an_average(first: int) -> None:
    best: dict[str, dict[str, torch.Tensor]] = {}

    def after(engine: Any, count: int, model: Model, optimizer: Any) -> None:
        if count % 4 == first:
            best["weights"] = weights(model)

    assert not train(after).shape.freedoms.noticed("forgotten-copy")


def test_an_average_with_new_tensors_after_each_step_is_reported() -> None:
    average: dict[str, dict[str, torch.Tensor]] = {}

    def after(engine: Any, count: int, model: Model, optimizer: Any) -> None:
        now = weights(model)
        before = average.get("weights", now)
        average["weights"] = {name: 0.9 * before[name] + 0.1 * now[name] for name in now}

    assert train(after).shape.freedoms.knows("forgotten-copy")


# -- when it searches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agreed", [True, False], ids=["agreed on", "waiting"])
def test_a_rate_known_to_be_set_by_hand_starts_no_search(agreed: bool) -> None:
    schedules = []

    def after(engine: Any, count: int, model: Model, optimizer: Any) -> None:
        if count == 7:
            engine.shape.freedoms.record(Habit("own-rate"))
            if agreed:
                engine.shape.freedoms.agree()
            schedules.append(ExponentialLR(optimizer, 0.9))
            optimizer.param_groups[0]["lr"] *= 0.5
        elif count == 8:
            assert not engine.shape.freedoms.noticed("forgotten-scheduler")

    train(after)


def test_a_stop_does_not_search() -> None:
    schedules = []

    def after(engine: Any, count: int, model: Model, optimizer: Any) -> None:
        if count == 4:
            schedules.append(ExponentialLR(optimizer, 0.9))
            engine.boundaries._stop(STOP_ORDERED)
            assert not engine.shape.freedoms.noticed("forgotten-scheduler")

    train(after)


# -- foreign code ------------------------------------------------------------------------------------------------------


def forbidden(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        CALLED.append(name)
        raise LookupError(name)

    return method


class ForeignDict(dict[str, Any]):
    __len__ = __iter__ = __getitem__ = __bool__ = values = keys = items = forbidden("dict")


class ForeignList(list[Any]):
    __len__ = __iter__ = __getitem__ = __bool__ = forbidden("list")


class ForeignTuple(tuple[Any, ...]):
    __slots__ = ()
    __len__ = __iter__ = __getitem__ = __bool__ = forbidden("tuple")


class ForeignModule(torch.nn.Sequential):
    parameters = named_parameters = modules = named_modules = children = forbidden("module")
    __len__ = __iter__ = forbidden("module")


class Proxy:
    __class__ = property(forbidden("proxy"))  # type: ignore[assignment]


class ForeignSchedule(ExponentialLR):
    def __getattribute__(self, name: str) -> Any:
        CALLED.append("schedule")
        return super().__getattribute__(name)


class ForeignScaler(torch.amp.GradScaler):
    def is_enabled(self) -> bool:
        CALLED.append("scaler")
        return super().is_enabled()

    def __getattribute__(self, name: str) -> Any:
        CALLED.append("scaler")
        return super().__getattribute__(name)


def strangers(model: Model) -> list[Any]:
    tensors = list(weights(model).values())
    module = ForeignModule(torch.nn.Linear(5, 11), torch.nn.Linear(11, 1))
    return [ForeignDict(a=1), ForeignList(tensors), ForeignTuple(tensors), module, [Proxy()]]


@pytest.mark.parametrize("given", [True, False], ids=["given to the job", "in the process"])
def test_the_search_runs_no_code_of_foreign_containers(given: bool) -> None:
    model = network()
    objects = strangers(model)
    search = Search(JobView([model], [sgd(model)], list, objects if given else []))
    CALLED.clear()
    search.look(early=True)
    search.look(early=True)
    assert not CALLED


def test_foreign_schedulers_and_scalers_are_recognised_without_running_their_code() -> None:
    model = network()
    optimizer = sgd(model)
    schedule, scaler = ForeignSchedule(optimizer, 0.9), ForeignScaler("cpu")
    scaler.scale(torch.ones(1))
    search = Search(JobView([model], [optimizer], list))
    CALLED.clear()
    seen = {habit.code: habit.detail for habit in search.look(early=False)}
    assert not CALLED
    assert seen["forgotten-scheduler"] == "ForeignSchedule"
    assert "forgotten-scaler" in seen
    del schedule, scaler


def test_an_average_in_a_foreign_container_is_reported() -> None:
    model = network()
    average = ForeignDict(weights(model))
    search = Search(JobView([model], [sgd(model)], list))
    codes = []
    for _ in range(3):
        for tensor in dict.values(average):
            tensor.mul_(0.9)
        codes.append([habit.code for habit in search.look(early=True)])
    assert codes == [[], ["forgotten-copy"], ["forgotten-copy"]]


def test_the_search_skips_only_objects_that_are_half_initialised() -> None:
    model = network()
    optimizer = sgd(model)
    half = torch.nn.Module.__new__(torch.nn.Module)
    schedule = ExponentialLR(optimizer, 0.9)
    search = Search(JobView([model], [optimizer], list, [half]))
    other = torch.nn.Module.__new__(torch.nn.Module)
    assert ("forgotten-scheduler", "ExponentialLR") in search.look(early=True)
    del schedule, other
