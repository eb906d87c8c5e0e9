"""Each observer alone recognises its habits from a few events. Also: what happens if an observer fails."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gpq_agent.train
import pytest
import torch
from gpq_agent.train.engine.registry import OBSERVERS, OF_OTHER_LOOPS
from gpq_agent.train.events import (
    BatchBegin,
    BatchEnd,
    Failure,
    FirstPartEnd,
    GradientFacts,
    LoopBegin,
    OptimizerFacts,
    SchedulerCall,
    SettingsChange,
    StepCall,
)
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.observers import Observers
from gpq_agent.train.habits.table import HABITS, Habit
from torch.optim.lr_scheduler import ExponentialLR

from .test_stepping import Examples, job, prepared

Events = Callable[[Observer, torch.nn.Module, torch.optim.Optimizer], Iterable[Habits]]
QUIET = OptimizerFacts(
    stepped=True,
    idle=(),
    has_gradients=True,
    asked_step=False,
    asked_sync=False,
    scheduled=False,
    skipped=False,
    groups_added=False,
)
CLEAN = GradientFacts(changed_between=False, replaced=False)
KINDS = (*OBSERVERS, *OF_OTHER_LOOPS)


def end(
    *, step: int = 0, place: int = 0, last: bool = True, left_early: bool = False, **facts: bool | tuple[str]
) -> Any:
    """The end of a batch with these facts, and otherwise the facts of a correct loop."""
    optimizers = QUIET._replace(**{name: facts[name] for name in facts if name in QUIET._fields})
    gradients = CLEAN._replace(**{name: facts[name] for name in facts if name in CLEAN._fields})
    return BatchEnd(step, 0, place, last, left_early, optimizers, gradients)


def closure(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.step_called(StepCall(last=True, closure=True))]


def step_value(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.step_called(StepCall(last=True, value=True))]


def hand_gradient(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.step_called(StepCall(last=False, without_backward=True))]


def other_optimizer(observer: Observer, model: torch.nn.Module, _: Any) -> list[Habits]:
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    other.step()
    observer.close()
    return [observer.batch_ends(end())]


def uneven_steps(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.batch_ends(end(idle=("Adam",)))]


def missing_step(observer: Observer, model: torch.nn.Module, _: Any) -> list[Habits]:
    missing = observer.batch_ends(end(stepped=False))
    skipped = observer.batch_ends(end(stepped=False, has_gradients=False))
    observer.batch_begins(BatchBegin(0, 0))
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    return [missing, skipped, observer.batch_ends(end(stepped=False))]


def two_passes(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.batch_ends(end(changed_between=True)), observer.step_called(StepCall(last=False, repeated=True))]


def step_between(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.backward_after_step()]


def gradient_hook(observer: Observer, model: torch.nn.Module, _: Any) -> list[Habits]:
    next(model.parameters()).register_hook(lambda gradient: gradient * 0.5)
    return [observer.batch_ends(end())]


def own_freezing(observer: Observer, model: torch.nn.Module, _: Any) -> list[Habits]:
    observer.batch_ends(end())
    next(model.parameters()).requires_grad_(False)
    return [observer.batch_ends(end(step=1))]


def own_rate(observer: Observer, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Habits]:
    observer.batch_ends(end())
    by_hand = [
        observer.settings_changed(SettingsChange(in_pieces=False, asked_step=False)),
        observer.scheduler_called(SchedulerCall(asked_step=False)),
        observer.batch_ends(end(scheduled=True)),
    ]
    assert [habit for habits in by_hand for habit in habits] == 3 * [Habit("own-rate")]
    schedule = ExponentialLR(optimizer, 0.9)
    assert schedule.optimizer is optimizer
    return [*by_hand, observer.settings_changed(SettingsChange(in_pieces=True, asked_step=True))]


def late_group(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.batch_ends(end(groups_added=True)), observer.batch_ends(end(replaced=True))]


def comm_hook(observer: Observer, *_: Any) -> list[Habits]:
    observer.job = observer.job._replace(own_comm_hook=True)
    return [observer.attempt_begins()]


def batch_norm(observer: Observer, *_: Any) -> list[Habits]:
    layers = [torch.nn.BatchNorm1d(3), torch.nn.SyncBatchNorm(3)]
    habits = []
    for layer in layers:
        observer.job = observer.job._replace(models=[torch.nn.Sequential(layer)])
        habits.append(observer.training_begins())
    return habits


def outside_parameters(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.attempt_begins()]


def own_next(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.loop_trains(LoopBegin(by_next=True, epoch=0))]


def own_epochs(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.loop_trains(LoopBegin(by_next=False, epoch=None))]


def own_break(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.batch_ends(end(left_early=True))]


def part_error(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.failed(Failure(0, 2, 4, 8, IndexError("of the loop")))]


def forgotten_scheduler(observer: Observer, _: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Habits]:
    assert not observer.training_begins()
    ExponentialLR(optimizer, 0.9)
    return [observer.training_begins(), observer.boundary()]


def state_in_pieces(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.first_part_ends(FirstPartEnd(parameters=False, buffer="", parts=["average"]))]


def moving_buffer(observer: Observer, *_: Any) -> list[Habits]:
    return [observer.first_part_ends(FirstPartEnd(parameters=False, buffer="weight_u", parts=[]))]


def watched(kind: type[Observer]) -> tuple[Observer, torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 13)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    view = JobView([model], [optimizer], lambda: list(model.parameters()), in_batch=lambda: True)
    return kind(view), model, optimizer


def name_of(kind: type[Observer]) -> str:
    return kind.__module__.rpartition(".")[2]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if name_of(kind) != "outside_parameters"], ids=name_of)
def test_an_observer_recognises_its_habits_from_events_alone(kind: type[Observer]) -> None:
    observer, model, optimizer = watched(kind)
    act: Events = globals()[name_of(kind)]
    noticed = [habit.code for habits in act(observer, model, optimizer) for habit in habits]
    assert set(noticed) == set(kind.codes)


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_an_observer_reports_nothing_about_a_correct_loop(kind: type[Observer]) -> None:
    observer, model, optimizer = watched(kind)
    said = [observer.attempt_begins(), observer.training_begins()]
    for step in range(4):
        loop = LoopBegin(by_next=False, epoch=step)
        said.append(observer.batch_begins(BatchBegin(step, 0)))
        model(torch.ones(4, 3)).square().mean().backward()
        said += [observer.step_called(StepCall(last=True)), observer.batch_ends(end(step=step))]
        said.append(observer.first_part_ends(FirstPartEnd(parameters=False, buffer="", parts=[])))
        optimizer.step()
        said += [observer.boundary(), observer.loop_trains(loop), observer.epoch_ends()]
    observer.close()
    assert [habit for habits in said for habit in habits] == []


def test_every_habit_in_the_table_has_an_observer() -> None:
    assert {code for kind in KINDS for code in kind.codes} == set(HABITS)


def test_habit_codes_appear_only_in_the_habits_package() -> None:
    train = Path(gpq_agent.train.__file__).parent
    for path in train.rglob("*.py"):
        if train / "habits" in path.parents:
            continue
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert texts.isdisjoint(set(HABITS) - {"closure"}), path  # also an argument of torch


# -- one that fails --------------------------------------------------------------------------------


class Failing(Observer):
    """Fails at the third batch, and again when it is closed."""

    codes = ("own-break",)
    closed = 0

    def batch_ends(self, event: BatchEnd) -> Habits:
        if event.step == 2:
            raise LookupError("of its own")
        return [Habit("own-break", str(event.step))]

    def close(self) -> None:
        Failing.closed += 1
        raise OSError("twice")


class Counting(Observer):
    codes = ("own-next",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        return [Habit("own-next", str(event.step))]


class Unmade(Observer):
    codes = ("own-epochs",)

    def __init__(self, job: JobView) -> None:
        raise ValueError("not here")


def test_only_the_observer_that_raises_is_closed_and_named() -> None:
    habits: list[Habit] = []
    lines: list[str] = []
    view = JobView([], [], list)
    observers = Observers(habits.append, lines.append)
    observers.watch((Unmade, Failing, Counting), view)
    for step in range(4):
        observers.batch_ends(end(step=step))
    assert [habit.detail for habit in habits if habit.code == "own-break"] == ["0", "1"]
    assert [habit.detail for habit in habits if habit.code == "own-next"] == ["0", "1", "2", "3"]
    assert Failing.closed == 1
    assert lines == [
        "gpq no longer watches for own-epochs, and training continues (ValueError: not here)",
        "gpq no longer watches for own-break, and training continues (LookupError: of its own)",
        "gpq no longer watches for own-break, and training continues (OSError: twice)",
    ]


def test_training_continues_when_an_observer_raises(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpq_agent.train.engine.engine.OBSERVERS", (Failing, Counting))
    this = job()
    loader = this.loader(Examples(40), batch_size=10)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(1):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert this.step == 4
    assert capsys.readouterr().err.count("gpq no longer watches for own-break") == 2
