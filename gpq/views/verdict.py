"""The text of `gpq check`: a row per shape, then the habits, and the verdict at the end."""

from __future__ import annotations

import os

from gpq.core.freedoms import MEANING
from gpq.verdicts import DIFFERS, FAILED, SAME, TOLD, ShapeView, Verdict
from gpq.views.plain import safe, wrap

JUDGEMENTS = {
    SAME: "gpq does not change what this script trains.",
    TOLD: "gpq does not change what this script trains, because it avoids the shapes above.",
    DIFFERS: "gpq would change what this script trains.",
    FAILED: "the script fails in a shape that gpq might use.",
}


def lines(answer: Verdict, limit: int, bar: str = "█") -> list[str]:
    command = " ".join([os.path.basename(answer.script), *answer.arguments])
    batch = f", {answer.batch} examples a step" if answer.batch else ""
    summary = f"{command}: {answer.steps} steps in each shape{batch}, compared with one replica"
    text = [*wrap(safe(summary), limit, "", "  "), ""]
    size = max((len(row.shape) for row in answer.shapes), default=0)
    text.append(f"{'shape':{size}}  {'verdict':8} {'largest':>8}  first difference")
    for row in answer.shapes:
        text += _row(row, size, limit)
    text.append("")
    text += _habits(answer, limit)
    for note in answer.notes:
        text += wrap(safe(note), limit, "note: ", "      ")
    return [*text, *wrap(f"{JUDGEMENTS[answer.verdict]} ({answer.seconds:.0f} s)", limit)]


def _habits(answer: Verdict, limit: int) -> list[str]:
    """Each habit once, with the shapes that it rules out."""
    habits = {row.habit.message: row.habit for row in answer.shapes if row.habit}
    text = []
    for habit in habits.values():
        rows = [row for row in answer.shapes if row.habit == habit]
        shapes = " / ".join(row.shape for row in rows)
        if len(rows) == len(answer.shapes):
            shapes = "every shape"
        is_told = rows[0].verdict == TOLD  # by the library. Otherwise it is guessed
        source = "gpq says:" if is_told else "probably"
        text += wrap(safe(f"{shapes}: {source} {habit.message}"), limit, "", "  ")
        text += wrap(safe(f"cure: {habit.cure}"), limit, "  ", "        ")
        if is_told:
            meanings = {name: f"{name} ({meaning})" for name, meaning in MEANING.items()}
            freedoms = ", ".join(meanings.get(freedom, freedom) for freedom in habit.freedoms)
            text += wrap(safe(f"until then gpq does not use: {freedoms}"), limit, "  ", "  ")
        text.append("")
    return text


def _row(row: ShapeView, size: int, limit: int) -> list[str]:
    difference = row.what
    if row.step is not None:
        difference = f"step {row.step}: {difference}"
    largest = ""
    if row.largest is not None:
        largest = f"{row.largest:.1e}" if row.largest else "0"
    head = f"{row.shape:{size}}  {row.verdict:8} {largest:>8}"
    text = [f"{head}  {safe(difference)}".rstrip()]
    indent = " " * (size + 2)
    if row.problem:
        text += wrap(safe(row.problem), limit, indent, indent)
        if row.log:
            text += wrap(safe(f"output: {row.log}"), limit, indent, indent)
    return text
