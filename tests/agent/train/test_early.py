"""What is told before it shows: leaving job.epochs() by a score, islice and zip around the loader, the head of an epoch."""

from __future__ import annotations

import itertools
import linecache
import math
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpq_agent.train import early
from gpq_agent.train.session import Job

from .test_stepping import Examples, adam, clear_first, job, network, prepared

# -- leaving by what the script alone knows ----------------------------------------------------------------------------


class FakeJob:
    """job.epochs() that only looks at who asks it."""

    step = 0

    def __init__(self) -> None:
        self.found = early.NOTHING
        self.parts: list[Any] = []
        self.told: list[str] = []
        self.settings: dict[str, Any] = {}

    def epochs(self, count: int) -> Iterator[int]:
        self.found = early.look(sys._getframe(1), self.parts)
        watched = self.found.watched
        for epoch in range(count):
            yield epoch
            self.told += [each.name for each in watched if each.changed()]

    def state(self, part: Any, value: Any = None) -> Any:
        self.parts.append(part)
        return part if value is None else value


class Stopper:
    def __init__(self) -> None:
        self.best, self.bad, self.stop = math.inf, 0, False

    def __call__(self, loss: float) -> bool:
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        self.stop = self.bad > 2
        return self.stop

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


FILES = itertools.count()


def run(source: str) -> FakeJob:
    """Run these lines as a script of their own."""
    text = textwrap.dedent(source)
    name = f"<early {next(FILES)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    this = FakeJob()
    losses = itertools.cycle([3.0, 2.0, 2.5])
    args = SimpleNamespace(patience=2, dry_run=False, limit=None, max_steps=-1)
    names = {"job": this, "args": args, "evaluate": lambda: next(losses), "Stopper": Stopper, "__name__": "script"}
    exec(compile(text, name, "exec"), names)
    return this


LEAVING = {
    "count and best": (
        """
        best, bad = 1e9, 0
        for epoch in job.epochs(4):
            loss = evaluate()
            if loss < best:
                best = loss
                bad = 0
            else:
                bad += 1
            if bad > args.patience:
                break
        """,
        ["bad", "best"],
    ),
    "a flag made of it": (
        """
        bad = 0
        def train():
            global bad
            stop = False
            for epoch in job.epochs(4):
                if evaluate() > 2:
                    bad = bad + 1
                stop = bad > 2
                try:
                    if stop:
                        return
                finally:
                    pass
        train()
        """,
        ["bad"],
    ),
    "an exit": (
        """
        import sys
        bad = 0
        for epoch in job.epochs(2):
            bad += evaluate() > 100
            if epoch > 0 and bad > 5:
                sys.exit(0)
        """,
        ["bad"],
    ),
    "the loss before": (
        """
        before = None
        for epoch in job.epochs(2):
            loss = evaluate()
            if before is not None and abs(before - loss) < 1e-9:
                break
            before = loss
        """,
        ["before"],
    ),
    "beside an option that has no value": (
        """
        bad = 0
        for epoch in job.epochs(2):
            bad += 1
            if args.limit is not None and args.limit > 3 and bad > args.limit:
                break
            if args.patience > 0 and bad > args.patience:
                break
        """,
        ["bad"],
    ),
    "in a dictionary": (
        """
        state = {"best": 0.0, "bad": 0}
        for epoch in job.epochs(2):
            state["bad"] += 1
            if state["bad"] > 5:
                break
        """,
        ["state['bad']"],
    ),
    "a header over lines": (
        """
        bad = 0
        for index, epoch in enumerate(
            job.epochs(
                2
            ),
            1,
        ):
            bad += 1
            if bad > args.patience and evaluate():
                break
        """,
        ["bad"],
    ),
    "a count of batches": (
        """
        steps = 0
        for epoch in job.epochs(2):
            for batch in range(3):
                steps += 1
                if steps > 100:
                    raise SystemExit(0)
        """,
        ["steps"],
    ),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_loop_that_may_end_by_what_earlier_epochs_left_is_found(name: str) -> None:
    source, expected = LEAVING[name]
    assert run(source).found.leaving == expected


HARMLESS = {
    "an option": "for epoch in job.epochs(2):\n    if args.dry_run: break",
    "the epoch": "for epoch in job.epochs(4):\n    if epoch == 2: break",
    "the step": "for epoch in job.epochs(2):\n    if job.step >= 9: break",
    "a flag of the step": "done = False\nfor epoch in job.epochs(2):\n    if job.step >= 9: done = True\n    if done: break",
    "a loss of this epoch": "loss = 0\nfor epoch in job.epochs(2):\n    loss = evaluate()\n    if loss < 0.1: break",
    "a loss of some epochs": """
        loss = 9.0
        for epoch in job.epochs(2):
            if epoch % 2 == 0:
                loss = evaluate()
            if loss < 0.1:
                break
        """,
    "a sum within the epoch": """
        for epoch in job.epochs(2):
            total, seen = 0.0, []
            for batch in range(3):
                total += evaluate()
                seen.append(total)
            if total / len(seen) < 0.1:
                break
        """,
    "a break of the loop inside": """
        count = 0
        for epoch in job.epochs(2):
            for batch in range(3):
                count += 1
                if count > 2:
                    break
            while True:
                count += 1
                if count > 9:
                    break
        """,
    "an option that is off": """
        bad = steps = 0
        for epoch in job.epochs(2):
            bad += 1
            steps += 1
            if args.limit is not None and bad > args.limit:
                break
            if 0 < args.max_steps and steps >= args.max_steps or epoch > 5:
                break
        """,
    "kept": """
        bad = job.state("bad", 0)
        for epoch in job.epochs(2):
            bad = job.state("bad", bad + 1)
            if bad > 5:
                break
        """,
    "kept in one value": """
        best, bad = 1e9, 0
        best, bad = job.state("stop", [best, bad])
        for epoch in job.epochs(2):
            bad += 1
            job.state("stop", [best, bad])
            if bad > 5:
                break
        """,
    "taken from a file": """
        saved = {"bad": 1}
        bad = saved["bad"]
        for epoch in job.epochs(2):
            bad += 1
            if bad > 5:
                break
        """,
    "an interruption": "for epoch in job.epochs(2):\n    try:\n        evaluate()\n    except KeyboardInterrupt:\n        break",
    "the newest of a list": """
        losses = []
        for epoch in job.epochs(2):
            losses.append(evaluate())
            if losses[-1] < 0.1:
                break
        """,
    "a count that ends nothing": "seen = 0\nfor epoch in job.epochs(2):\n    seen += 1\n    if seen > 5: print(seen)",
    "a function inside": """
        bad = 0
        for epoch in job.epochs(2):
            bad += 1
            def closure():
                if bad > 3:
                    return 1
                return 2
        """,
    "no loop": "bad = 0\nepochs = job.epochs(2)\nnext(epochs)\nwhile bad < 3:\n    bad += 1\n    if bad > 1: break",
    "an object that begins anew": """
        stopper = Stopper()
        for epoch in job.epochs(3):
            stopper.reset()
            if stopper(evaluate()):
                break
        """,
    "an object that is kept": """
        stopper = job.state(Stopper())
        for epoch in job.epochs(3):
            if stopper(evaluate()):
                break
        """,
    "an object that is only called": "stopper = Stopper()\nfor epoch in job.epochs(3):\n    stopper(evaluate())",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_nothing_is_said_of_a_loop_that_ends_by_facts(name: str) -> None:
    this = run(HARMLESS[name])
    assert this.found == early.NOTHING
    assert this.told == []


@pytest.mark.parametrize(
    "asked",
    [
        "if stopper(evaluate()):",
        "stop = stopper(evaluate())\n    if stop and epoch > 0:",
        "stopper(evaluate())\n    if stopper.stop:",
        "stopper(evaluate())\n    if not stopper.stop:\n        continue\n    if stopper.stop:",
        "stopper(evaluate())\n    if stopper.bad > args.patience:",
    ],
)
def test_an_object_that_may_end_the_loop_is_told_once_it_has_changed(asked: str) -> None:
    this = run(f"stopper = Stopper()\nfor epoch in job.epochs(3):\n    {asked}\n        break")
    assert this.found.leaving == []
    assert set(this.told) == {"stopper"}


TRAINER = """
    class Trainer:
        def __init__(self):
            {begin}
            self.loss = 0.0
        def validate(self):
            self.loss = evaluate()
            {count}
        def fit(self):
            for epoch in job.epochs(3):
                self.validate()
                if {test}:
                    break
    Trainer().fit()
"""


@pytest.mark.parametrize(
    ("begin", "count", "test", "expected"),
    [
        ("self.bad = 0", "self.bad += 1", "self.bad > 5", ["self.bad"]),
        ("self.bad = 0", "self.bad = self.bad + 1 if self.loss > 2 else 0", "self.bad > 5", ["self.bad"]),
        ("self.bad = job.state('bad', 0)", "self.bad = job.state('bad', self.bad + 1)", "self.bad > 5", []),
        ("self.bad = 0\n            job.state(self)", "self.bad += 1", "self.bad > 5", []),
        ("self.bad = 0", "self.bad += 1", "self.loss < 0.1", []),
    ],
)
def test_a_trainer_that_counts_in_another_method_is_found(
    begin: str, count: str, test: str, expected: list[str]
) -> None:
    assert run(TRAINER.format(begin=begin, count=count, test=test)).found.leaving == expected


BEST = {
    "if": ("if loss < best: best = loss", ["best"]),
    "turned around": ("if best is None or best > loss.real: best = float(loss.real)", ["best"]),
    "by a margin": ("if loss < best - 1e-4:\n        print('better')\n        best = loss", ["best"]),
    "as in the ImageNet example": ("is_best = loss > best\n    best = max(loss, best)", ["best"]),
    "of a clock": ("if time.time() - best > 60: best = time.time()", []),
    "of another value": ("if loss > best: best = epoch", []),
    "kept": ("if loss < best: best = job.state('best', loss)", []),
    "only seen": ("best = min(best, loss)", []),
}


@pytest.mark.parametrize("name", BEST)
def test_a_best_value_that_nobody_keeps_is_found(name: str) -> None:
    lines, expected = BEST[name]
    found = run(f"import time\nbest = 1e9\nfor epoch in job.epochs(2):\n    loss = evaluate()\n    {lines}").found
    assert found.best == expected
    assert found.leaving == []


def test_where_there_is_no_source_nothing_is_said() -> None:
    this = FakeJob()
    source = "bad = 0\nfor epoch in job.epochs(2):\n    bad += 1\n    if bad > 1: break"
    exec(compile(source, "<nowhere>", "exec"), {"job": this, "__name__": "script"})
    assert this.found == early.NOTHING


def test_what_a_script_took_from_locals_stays_as_it_was() -> None:
    this = run(
        """
        def train(rate=0.1):
            settings = locals()
            bad = 0
            for epoch in job.epochs(2):
                bad += 1
                if bad > 5:
                    break
            job.settings = settings
        train()
        """
    )
    assert this.found.leaving == ["bad"]
    assert "bad" not in this.settings


def known(this: Job) -> dict[str, str]:
    this._engine.freedoms.agree()
    return this._engine.freedoms._known


def test_a_best_value_is_a_line_and_no_habit_and_only_where_there_are_restarts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for folder in (None, "/nowhere"):
        this = job()
        loader = this.loader(Examples(20), batch_size=10, fixed_batch=True)
        model, optimizer, _ = prepared(this)
        this._engine.environment = this._engine.environment._replace(checkpoint_dir=folder)
        best = math.inf
        for epoch in this.epochs(1):
            loss = 0.0
            for x, y in loader:
                clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
            loss += 0.5 + epoch
            this._engine.environment = this._engine.environment._replace(checkpoint_dir=None)
            if loss < best:
                best = loss
        assert known(this) == {}
        said = [line for line in capfd.readouterr().err.splitlines() if "best value" in line]
        assert len(said) == (folder is not None)
        assert all('job.state("best"' in line.replace("'", '"') for line in said)


# -- around the loader -------------------------------------------------------------------------------------------------


def passed_on(batches: Any) -> Iterator[Any]:
    for batch in batches:  # noqa: UP028
        yield batch


# -- the head of an epoch ----------------------------------------------------------------------------------------------


def heads(head: Callable[[Job, int, Any, Any, Any], Any], consumed: int = 0) -> dict[str, str]:
    """What is known of a loop with this head, after two epochs."""
    this = job()
    loader = this.loader(Examples(50), batch_size=10, fixed_batch=True)
    loader.sampler.seek(0, consumed)
    model = network()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, schedule = this.prepare(model, optimizer, schedule)
    for epoch in this.epochs(2):
        head(this, epoch, model, optimizer, schedule)
        for x, y in loader:
            clear_first(model, optimizer, lambda: torch.nn.functional.mse_loss(model(x), y))  # noqa: B023
    return dict(known(this))


def doubled(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)


@pytest.mark.parametrize(
    ("head", "detail"),
    [
        (lambda job, epoch, model, optimizer, _: epoch and doubled(model), "changes weights"),
        (lambda job, epoch, model, optimizer, _: epoch or doubled(model), "changes weights"),
        (lambda job, epoch, model, optimizer, _: optimizer.state.clear(), "changes the state of an optimizer"),
        (
            lambda job, epoch, model, optimizer, _: setattr(optimizer, "state", defaultdict(dict)),
            "changes the state of an optimizer",
        ),
        (lambda job, epoch, model, optimizer, schedule: epoch and schedule.step(), "steps a schedule"),
        (lambda job, epoch, model, optimizer, _: doubled(model) if job.step > 0 else None, "changes weights"),
    ],
)
def test_what_the_head_of_an_epoch_changes_is_told(head: Any, detail: str) -> None:
    assert heads(head) == {"epoch-head": detail}


def test_the_head_of_a_part_of_an_epoch_tells_nothing() -> None:
    assert heads(lambda job, epoch, model, *_: doubled(model) if epoch == 0 else None, consumed=20) == {}


@pytest.mark.parametrize(
    "head",
    [
        lambda *_: None,
        lambda job, epoch, model, *_: doubled(model) if job.progress.samples == 0 else None,
        lambda job, epoch, model, *_: doubled(model) if job.step == 0 else None,
        lambda job, epoch, model, *_: model(torch.zeros(1, 5)),
        lambda job, epoch, model, optimizer, _: optimizer.param_groups[0].update(lr=0.01 / (1 + epoch)),
        lambda job, epoch, model, *_: model[0].requires_grad_(epoch > 0),
        lambda job, epoch, model, optimizer, schedule: optimizer.zero_grad(),
    ],
)
def test_what_the_head_may_do_again_is_not_told(head: Any) -> None:
    assert heads(head) == {}
