"""The text of `gpq check`: a row for each shape, what stands against it below, the judgement at the
end."""

from __future__ import annotations

import os

from gpq.check.verdict import DIFFERS, FAILED, SAME, TOLD, FoundHabit, ShapeView, Verdict
from gpq.core.freedoms.habits import MEANING
from gpq.views.plain import safe, wrapped

JUDGEMENTS = {
    SAME: "gpq does not change what this script trains.",
    TOLD: "gpq does not change what this script trains; it leaves out what it cannot do right.",
    DIFFERS: "gpq would change what this script trains.",
    FAILED: "the script fails in a shape that gpq might run it in.",
}


def lines(answer: Verdict, limit: int, bar: str = "█") -> list[str]:
    command = " ".join([os.path.basename(answer.script), *answer.arguments])
    batch = f", {answer.batch} examples a step" if answer.batch else ""
    text = wrapped(
        safe(f"{command}: {answer.steps} steps in each shape{batch}, held against one replica"),
        limit,
        "",
        "  ",
    )
    text.append("")
    size = max(len(row.shape) for row in answer.shapes) if answer.shapes else 0
    text.append(f"{'shape':{size}}  {'verdict':8} {'largest':>8}  first that differs")
    for row in answer.shapes:
        text += _row(row, size, limit)
    text.append("")
    for habit in {row.habit.message: row.habit for row in answer.shapes if row.habit}.values():
        affected_rows = [row for row in answer.shapes if row.habit == habit]
        where = (
            "every shape"
            if len(affected_rows) == len(answer.shapes)
            else "; ".join(row.shape for row in affected_rows)
        )
        text += _habit(habit, where, affected_rows[0].verdict == TOLD, limit)
    for note in answer.notes:
        text += wrapped(safe(note), limit, "note: ", "      ")
    return [
        *text,
        *wrapped(f"{JUDGEMENTS[answer.verdict]} ({answer.seconds:.0f} s)", limit, "", ""),
    ]


def _row(row: ShapeView, size: int, limit: int) -> list[str]:
    largest = f"{row.largest:.1e}" if row.largest else "0"
    if row.largest is None:
        largest = ""
    first = f"step {row.step}: {row.what}" if row.step is not None else row.what
    text = [f"{row.shape:{size}}  {row.verdict:8} {largest:>8}  {safe(first)}".rstrip()]
    indent = " " * (size + 2)
    if row.problem:
        text += wrapped(safe(row.problem), limit, indent, indent)
        text += (
            wrapped(safe(f"what it printed: {row.log}"), limit, indent, indent) if row.log else []
        )
    return text


def _habit(habit: FoundHabit, where: str, is_told: bool, limit: int) -> list[str]:
    """What stands against which shapes. Told, or guessed."""
    sentence = f"gpq says: {habit.message}" if is_told else f"probably {habit.message}"
    text = wrapped(safe(f"{where}: {sentence}"), limit, "", "  ")
    text += wrapped(safe(f"cure: {habit.cure}"), limit, "  ", "        ")
    if is_told:
        freedoms = [
            f"{freedom} ({MEANING[freedom]})" if freedom in MEANING else freedom
            for freedom in habit.freedoms
        ]
        text += wrapped(
            safe(f"until then gpq leaves out: {', '.join(freedoms)}"), limit, "  ", "  "
        )
    return [*text, ""]
