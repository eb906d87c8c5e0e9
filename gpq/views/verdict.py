"""The text of `gpq check`: a row per shape, then the habits, and the verdict at the end."""

from __future__ import annotations

import os

from gpq.core.freedoms import MEANING
from gpq.verdicts import DIFFERS, FAILED, SAME, TOLD, FoundHabit, ShapeView, Verdict
from gpq.views.plain import safe, wrap

JUDGEMENTS = {
    SAME: "gpq does not change what this script trains.",
    TOLD: "gpq does not change what this script trains, because it avoids the shapes above.",
    DIFFERS: "gpq would change what this script trains.",
    FAILED: "the script fails in a shape that gpq might use.",
}


def lines(answer: Verdict, limit: int, bar: str = "█") -> list[str]:
    text = wrap(safe(_summary(answer)), limit, "", "  ")
    text.append("")
    size = max((len(row.shape) for row in answer.shapes), default=0)
    text.append(f"{'shape':{size}}  {'verdict':8} {'largest':>8}  first difference")
    for row in answer.shapes:
        text += _row(row, size, limit)
    text.append("")
    text += _habits(answer, limit)
    for note in answer.notes:
        text += wrap(safe(note), limit, "note: ", "      ")
    return [*text, *wrap(f"{JUDGEMENTS[answer.verdict]} ({answer.seconds:.0f} s)", limit)]


def _summary(answer: Verdict) -> str:
    command = " ".join([os.path.basename(answer.script), *answer.arguments])
    batch = f", {answer.batch} examples a step" if answer.batch else ""
    return f"{command}: {answer.steps} steps in each shape{batch}, compared with one replica"


def _habits(answer: Verdict, limit: int) -> list[str]:
    """Each habit once, with the shapes that it rules out."""
    habits = {row.habit.message: row.habit for row in answer.shapes if row.habit}
    text = []
    for habit in habits.values():
        rows = [row for row in answer.shapes if row.habit == habit]
        shapes = " / ".join(row.shape for row in rows)
        if len(rows) == len(answer.shapes):
            shapes = "every shape"
        text += _habit(habit, shapes, rows[0].verdict == TOLD, limit)
    return text


def _row(row: ShapeView, size: int, limit: int) -> list[str]:
    difference = row.what
    if row.step is not None:
        difference = f"step {row.step}: {difference}"
    head = f"{row.shape:{size}}  {row.verdict:8} {_largest(row.largest):>8}"
    text = [f"{head}  {safe(difference)}".rstrip()]
    indent = " " * (size + 2)
    if row.problem:
        text += wrap(safe(row.problem), limit, indent, indent)
        if row.log:
            text += wrap(safe(f"output: {row.log}"), limit, indent, indent)
    return text


def _largest(difference: float | None) -> str:
    if difference is None:
        return ""
    if difference:
        return f"{difference:.1e}"
    return "0"


def _habit(habit: FoundHabit, shapes: str, is_told: bool, limit: int) -> list[str]:
    """A habit with its shapes: told by the library, or guessed."""
    source = "gpq says:" if is_told else "probably"
    text = wrap(safe(f"{shapes}: {source} {habit.message}"), limit, "", "  ")
    text += wrap(safe(f"cure: {habit.cure}"), limit, "  ", "        ")
    if is_told:
        freedoms = ", ".join(map(_explain, habit.freedoms))
        text += wrap(safe(f"until then gpq does not use: {freedoms}"), limit, "  ", "  ")
    return [*text, ""]


def _explain(freedom: str) -> str:
    if freedom in MEANING:
        return f"{freedom} ({MEANING[freedom]})"
    return freedom
