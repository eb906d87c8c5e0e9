"""What a script forgets at a restart, as far as its source shows. Hints take no freedom away."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from gpq.lint import MOST, hints
from tests.habits.catalogue import load
from tests.habits.proven import HINTED

ENDING = {**HINTED, "best-forgotten": "best"}
TRICKY = {"leaves-by-facts"}  # counts what an option turns off


@pytest.mark.parametrize("name", ENDING)
def test_a_hint_names_a_loop_condition_that_a_restart_resets(name: str) -> None:
    lines = hints(textwrap.dedent(inspect.getsource(load()[name].loop)))
    assert any(f"a restart of the job resets `{ENDING[name]}`, " in line for line in lines)


def test_other_loops_get_no_hints() -> None:
    others = {name: habit for name, habit in load().items() if name not in ENDING and name not in TRICKY}
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


def test_unreadable_scripts_have_no_hints_and_long_lists_are_cut() -> None:
    for text in ("for epoch in", "\0", "(" * 10_000, "x = 1"):
        assert hints(text) == []
    many = "".join(f"a{number} = 0\n" for number in range(20)) + "for epoch in job.epochs(9):\n"
    many += "".join(f"    a{number} += 1\n    if a{number} > 3:\n        break\n" for number in range(20))
    assert len(hints(many)) == MOST
