"""From runs to a verdict: a row for each shape, what was told, and what was taken out of the comparison."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.check.comparing import Finding, Judge
from gpq.check.guessing import Case, guess, habit, own_epochs
from gpq.check.records import Run, Told
from gpq.check.running import Course, last_lines
from gpq.check.shapes import Shape
from gpq.check.verdict import DIFFERS, FAILED, SAME, TOLD, HabitView, ShapeView

FREEDOMS = ("accumulate", "split", "resize", "retune")


def row(judge: Judge, course: Course, run: Run, script: str, reproducible: bool | None) -> ShapeView:
    """One shape against the reference. What was told in the reference holds in all shapes: no job begins otherwise."""
    shape = course.shape
    if course.failed:
        return _failed(course, f"{course.failed}: {' '.join(_last(course.log))}")
    told = _against(shape, {**judge.reference.told, **run.told})
    if told is not None:
        return ShapeView(shape.name, TOLD, None, None, "", told, [], "", "")
    finding = judge.judge(run)
    if finding.missing and not run.outside:
        return _failed(course, f"it made {run.last} steps, the reference {judge.reference.last}")
    step, what = finding.step, _what(finding)
    if step is None and run.outside:
        what = "samples"
    elif step is None and len(shape.attempts) > 1 and own_epochs(run):
        cause, step, what = habit("own-epochs"), shape.attempts[1].begin, "epochs left"
        return ShapeView(shape.name, DIFFERS, finding.largest, step, what, cause, finding.metrics, "", "")
    elif step is None:
        return ShapeView(shape.name, SAME, finding.largest, None, "", None, finding.metrics, "", "")
    cause = guess(Case(judge, shape, run, finding, script, reproducible))
    return ShapeView(shape.name, DIFFERS, finding.largest, step, what, cause, finding.metrics, "", "")


def habits(runs: Sequence[Run]) -> list[HabitView]:
    """Everything that the library told, once."""
    return list({code: _view(told) for run in runs for code, told in run.told.items()}.values())


def worst(rows: Sequence[ShapeView]) -> str:
    found = {each.verdict for each in rows}
    return next((verdict for verdict in (FAILED, DIFFERS, TOLD) if verdict in found), SAME)


def _against(shape: Shape, told: dict[str, Told]) -> HabitView | None:
    """The habit that takes a freedom away which this shape needs."""
    for each in told.values():
        if set(each.freedoms) & set(shape.freedoms):
            return _view(each)
    return None


def _view(told: Told) -> HabitView:
    freedoms = [each for each in FREEDOMS if each in told.freedoms]
    return HabitView(told.code[:100], freedoms, told.message[:500], told.cure[:500])


def _failed(course: Course, problem: str) -> ShapeView:
    return ShapeView(course.shape.name, FAILED, None, None, "", None, [], problem[:500], course.log)


def _last(log: str) -> list[str]:
    return last_lines(log)[-1:]


def _what(finding: Finding) -> str:
    """What differs first; causes before what follows from them."""
    if finding.step is None:
        return ""
    if finding.samples == finding.step:
        return "samples"
    if finding.rates == finding.step:
        return "learning rate"
    return finding.differences[0].what if finding.differences else ""
