"""From runs to a verdict: a row for each shape, what the library reported, and notes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from gpq_agent import wire

from gpq.check.guesses import Case, draws_numbers, guess, habit, join
from gpq.check.judge import Judge
from gpq.check.records import Facts, Run, Told
from gpq.check.rounding import Rounding
from gpq.check.runner import ShapeRun, last_lines
from gpq.check.shapes import Shape
from gpq.source import Script
from gpq.verdicts import DIFFERS, FAILED, SAME, TOLD, FoundHabit, ShapeView

ORDER = "order of examples"  # it matters in one replica, so part of a batch is never like the whole


def rows(
    judge: Judge, pairs: Sequence[tuple[ShapeRun, Run]], script: Script, reproducible: bool | None
) -> list[ShapeView]:
    """The table. `reproducible`: do two runs of the reference agree? None if
    nobody checked."""
    table = [_row(judge, course, run, script, reproducible) for course, run in pairs]
    guesses = join([row.habit if row.verdict == DIFFERS else None for row in table])
    return [
        msgspec.structs.replace(row, habit=habit or row.habit)
        for row, habit in zip(table, guesses, strict=True)
    ]


def _row(
    judge: Judge, course: ShapeRun, run: Run, script: Script, reproducible: bool | None
) -> ShapeView:
    """Compare one shape with the reference. A habit reported in the reference applies to all
    shapes, because every job starts like it. A suspected habit counts only if the shape differs,
    because a job that shows it never runs in such a shape."""
    shape = course.shape
    told_habit = _against(shape, {**judge.reference.habits, **run.habits})
    if told_habit is not None:
        return ShapeView(shape.name, TOLD, None, None, "", told_habit, [], "", "")
    row = _compare(judge, course, run, script, reproducible)
    suspected_habit = _against(shape, {**judge.reference.suspected, **run.suspected})
    if suspected_habit is None or row.verdict == SAME or reproducible is False:
        return row
    return msgspec.structs.replace(row, verdict=TOLD, habit=suspected_habit, problem="", log="")


def _compare(
    judge: Judge, course: ShapeRun, run: Run, script: Script, reproducible: bool | None
) -> ShapeView:
    shape = course.shape
    if course.failed:
        return _failure(course, f"{course.failed}: {' '.join(last_lines(course.log)[-1:])}")
    if run.outside or judge.reference.outside:
        # Optimizer steps run outside the loop over job.loader(), so gpq can only start several
        # replicas or restart them.
        if shape.replicas == 1:
            return ShapeView(shape.name, SAME, None, None, "", None, [], "", "")
        own = habit("own-loader")
        return ShapeView(shape.name, DIFFERS, None, None, "samples", own, [], "", "")
    finding = judge.judge(run)
    if finding.missing:
        problem = f"it made {run.last} steps, but the reference made {judge.reference.last}"
        return _failure(course, problem)
    case = Case(judge, shape, run, finding, script, reproducible)
    step, difference, cause = _difference(case)
    verdict = SAME if step is None else DIFFERS
    return ShapeView(
        shape.name, verdict, finding.largest, step, difference, cause, finding.metrics, "", ""
    )


def _difference(case: Case) -> tuple[int | None, str, FoundHabit | None]:
    """The first step that differs, what differs there first, and the habit behind it. None if
    everything is the same. Causes come before their effects."""
    finding = case.finding
    if finding.step is None:
        ordered = case.judge.rounding.ordered
        if ordered is not None and case.reproducible and case.shape.cut:
            return ordered, ORDER, habit("mixed")
        return None, "", None
    if finding.samples == finding.step:
        what = "samples"
    elif finding.rates == finding.step:
        what = "optimizer steps" if finding.uneven else "learning rate"
    else:
        what = finding.differences[0].what
    return finding.step, what, guess(case)


def habits(runs: Sequence[Run], rows: Sequence[ShapeView] = ()) -> list[FoundHabit]:
    """Every habit that the library reported, once, and each suspected one that shows in a row."""
    told_habits = {
        code: _view(told_habit) for run in runs for code, told_habit in run.habits.items()
    }
    shown_habits = {
        row.habit.code: row.habit for row in rows if row.verdict == TOLD and row.habit is not None
    }
    return list({**told_habits, **shown_habits}.values())


def doubts(runs: Sequence[Run], rows: Sequence[ShapeView]) -> list[str]:
    """One line for each suspicion of the library that shows in no row."""
    shown_codes = {row.habit.code for row in rows if row.habit is not None}
    suspicions = {
        code: suspicion
        for run in runs
        for code, suspicion in run.suspected.items()
        if code not in shown_codes
    }
    return [
        "so few steps do not show this habit, but a job would assume it:"
        f" {suspicion.message[:300]} ({code})"
        for code, suspicion in suspicions.items()
    ]


def worst(rows: Sequence[ShapeView]) -> str:
    verdicts = {row.verdict for row in rows}
    return next((verdict for verdict in (FAILED, DIFFERS, TOLD) if verdict in verdicts), SAME)


def _against(shape: Shape, habits_by_code: dict[str, Told]) -> FoundHabit | None:
    """The habit that takes a freedom which this shape needs."""
    for told_habit in habits_by_code.values():
        if set(told_habit.freedoms) & set(shape.freedoms):
            return _view(told_habit)
    return None


def _view(told_habit: Told) -> FoundHabit:
    freedoms = [freedom for freedom in wire.FREEDOMS if freedom in told_habit.freedoms]
    return FoundHabit(
        told_habit.code[:100], freedoms, told_habit.message[:500], told_habit.cure[:500]
    )


def _failure(course: ShapeRun, problem: str) -> ShapeView:
    log = course.log or str(course.log_of(0))
    return ShapeView(course.shape.name, FAILED, None, None, "", None, [], problem[:500], log)


def notes(
    reference: Run, facts: Facts, rows: Sequence[ShapeView], rounding: Rounding, failure: str
) -> list[str]:
    """`failure`: the error of the script in full precision."""
    is_random, is_controlled = draws_numbers(reference), facts.loader and not facts.compiled
    lines = []
    if is_controlled:
        lines.append(
            "random numbers, such as dropout and augmentation, were drawn per example, but in "
            "a job each shape draws its own"
        )
    if is_random:
        lines.append(
            "some random numbers belong to no example and were the same in every part of a "
            "step, so their effect could not be told from rounding"
        )
    if not is_controlled:
        lines.append(
            "dropout was off, because the check cannot control what a compiled model or a "
            "loop without job.loader() draws"
        )
    elif facts.recurrent:
        lines.append(
            "dropout between the layers of recurrent modules was off, because each shape draws "
            "it differently"
        )
    lines.append(_precision(rounding.coarse, failure))
    if not facts.loader:
        lines.append(
            "the script does not use job.loader(), so gpq never accumulates or splits its steps"
        )
    if rounding.mixed and not is_random:
        lines.append(
            "the order of the examples in a batch changes the result, so the effect of "
            "rounding is unknown"
        )
    metrics = sorted({name for row in rows for name in row.metrics})
    if metrics:
        lines.append(
            f"logged values that differ: {', '.join(metrics)[:200]} (part of a batch has its own"
            " value)"
        )
    if any(row.verdict == DIFFERS for row in rows):
        lines.append("the habit behind a difference is a guess from what differs first")
    return lines


def _precision(coarse: float, failure: str) -> str:
    if not coarse:
        return "everything ran in full precision, without autocast and TF32"
    reason = "weights in half precision"
    if failure:
        reason = f"not run in full precision, because the script fails in it ({failure[:200]})"
    return (
        f"{reason}: only the first step that differs was compared, to within 3 units in the last"
        f" place ({coarse:.1%})"
    )
