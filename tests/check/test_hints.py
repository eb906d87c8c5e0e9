"""What a script forgets at a restart, as far as its source shows. Hints take no freedom away."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from gpq import source as said
from gpq.source import Script
from tests.habits.catalogue import load
from tests.habits.proven import HINTED

ENDING = {**HINTED, "best-forgotten": "best"}
TRICKY = {"leaves-by-facts"}  # counts what an option turns off
AVERAGES = ["ema-deepcopy", "mean-teacher"]  # gpq check finds these too


def hints(text: str) -> list[str]:
    return said.hints(Script(text))


@pytest.mark.parametrize("name", [*ENDING, *AVERAGES])
def test_a_hint_names_what_a_restart_resets(name: str) -> None:
    lines = hints(textwrap.dedent(inspect.getsource(load()[name].loop)))
    reset = ENDING.get(name, "")
    reset = reset if "`" in reset else f"`{reset}"
    assert any(f"a restart of the job resets {reset}" in line for line in lines)


def test_other_loops_get_no_hints() -> None:
    others = {name: habit for name, habit in load().items() if name not in {*ENDING, *TRICKY, *AVERAGES}}
    found = {name: hints(textwrap.dedent(inspect.getsource(habit.loop))) for name, habit in others.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_fixed_script_gets_no_hint() -> None:
    loop = """
best, bad = {0}
for epoch in tqdm(job.epochs(100)):
    score = validate(model)
    if score > best:
        best, bad = score, 0
        job.state("best", best)
    else:
        bad += 1
    job.state("bad", bad)
    if bad > 3:
        break
"""
    [first, second] = hints(loop.format("float('-inf'), 0").replace('    job.state("bad", bad)\n', "").replace(
        '        job.state("best", best)\n', ""
    ))  # fmt: skip
    assert first.startswith("line 10: a restart of the job resets `bad`, by which the loop may end: ")
    assert second.startswith("line 5: a restart of the job resets `best`, the best value so far: ")
    assert hints(loop.format('job.state("best", 0.0), job.state("bad", 0)')) == []


@pytest.mark.parametrize("end", ["job.step > 100", "job.should_stop()", "loss < 0.01", "loss.isnan()", "epoch == 3"])
def test_a_loop_that_ends_on_persistent_facts_forgets_nothing(end: str) -> None:
    assert hints(f"for epoch in job.epochs(9):\n    loss = step(model)\n    if {end}:\n        break\n") == []


def test_a_loop_that_ends_by_a_result_names_the_value_to_keep() -> None:
    loop = "bad = 0\nfor epoch in job.epochs(9):\n    bad += step()\n    stop = bad > 3\n    if stop:\n        break\n"
    [line] = hints(loop)
    assert line.startswith("line 6: a restart of the job resets `bad`, by which the loop may end: add bad = job.state(")


def test_unreadable_scripts_have_no_hints_and_long_lists_are_cut() -> None:
    for text in ("for epoch in", "\0", "(" * 10_000, "x = 1"):
        assert hints(text) == []
    many = "".join(f"a{number} = 0\n" for number in range(20)) + "for epoch in job.epochs(9):\n"
    many += "".join(f"    a{number} += 1\n    if a{number} > 3:\n        break\n" for number in range(20))
    assert len(hints(many)) == said.MOST_HINTS


AVERAGE = """
{made}
scaler = GradScaler()
{given}
for epoch in job.epochs(9):
    for x, y in loader:
        {update}
"""


@pytest.mark.parametrize(
    ("made", "update"),
    [
        ("ema = ModelEmaV3(model)", "ema.update(model)"),
        ("ema = AveragedModel(model)", "ema.update_parameters(model)"),
        ("ema = [item.clone() for item in model.parameters()]", "torch._foreach_lerp_(ema, weights, 0.1)"),
        ("ema = deepcopy(model.state_dict())", "ema[name] = 0.9 * ema[name] + 0.1 * weight"),
    ],
)
def test_an_average_and_a_scaler_that_the_job_was_given_get_no_hint(made: str, update: str) -> None:
    lines = hints(AVERAGE.format(made=made, update=update, given=""))
    assert [line.partition(":")[0] for line in lines] == ["line 2", "line 3"]
    assert "an average of weights" in lines[0]
    assert lines[1].endswith("scaler=scaler)")
    given = "job.state(ema); job.prepare(model, optimizer, scaler=scaler)"
    assert hints(AVERAGE.format(made=made, update=update, given=given)) == []


@pytest.mark.parametrize("use", ["loss += kl(model(x), frozen(x))", "frozen.load_state_dict(model.state_dict())"])
def test_a_copy_that_no_loop_averages_gets_no_hint(use: str) -> None:
    given = "job.prepare(model, optimizer, scaler=scaler)"
    assert hints(AVERAGE.format(made="frozen = deepcopy(model).requires_grad_(False)", given=given, update=use)) == []
