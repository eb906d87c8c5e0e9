"""The text of `gpq check`: a row for each shape, what stands against it below, the judgement at the
end."""

from __future__ import annotations

import os

from gpq.check.verdict import DIFFERS, FAILED, SAME, TOLD, FoundHabit, ShapeView, Verdict
from gpq.core.freedoms.habits import MEANING
from gpq.views.plain import safe, wrapped

SAID = {
    SAME: "gpq does not change what this script trains.",
    TOLD: "gpq does not change what this script trains; it leaves out what it cannot do right.",
    DIFFERS: "gpq would change what this script trains.",
    FAILED: "the script fails in a shape that gpq might run it in.",
}


def lines(found: Verdict, limit: int, bar: str = "█") -> list[str]:
    command = " ".join([os.path.basename(found.script), *found.arguments])
    batch = f", {found.batch} examples a step" if found.batch else ""
    text = wrapped(
        safe(f"{command}: {found.steps} steps in each shape{batch}, held against one replica"),
        limit,
        "",
        "  ",
    )
    text.append("")
    size = max(len(each.shape) for each in found.shapes) if found.shapes else 0
    text.append(f"{'shape':{size}}  {'verdict':8} {'largest':>8}  first that differs")
    for each in found.shapes:
        text += _row(each, size, limit)
    text.append("")
    for habit in {each.habit.message: each.habit for each in found.shapes if each.habit}.values():
        rows = [each for each in found.shapes if each.habit == habit]
        where = (
            "every shape"
            if len(rows) == len(found.shapes)
            else "; ".join(each.shape for each in rows)
        )
        text += _habit(habit, where, rows[0].verdict == TOLD, limit)
    for note in found.notes:
        text += wrapped(safe(note), limit, "note: ", "      ")
    return [*text, *wrapped(f"{SAID[found.verdict]} ({found.seconds:.0f} s)", limit, "", "")]


def _row(each: ShapeView, size: int, limit: int) -> list[str]:
    largest = f"{each.largest:.1e}" if each.largest else "0"
    if each.largest is None:
        largest = ""
    first = f"step {each.step}: {each.what}" if each.step is not None else each.what
    text = [f"{each.shape:{size}}  {each.verdict:8} {largest:>8}  {safe(first)}".rstrip()]
    indent = " " * (size + 2)
    if each.problem:
        text += wrapped(safe(each.problem), limit, indent, indent)
        text += (
            wrapped(safe(f"what it printed: {each.log}"), limit, indent, indent) if each.log else []
        )
    return text


def _habit(habit: FoundHabit, where: str, told: bool, limit: int) -> list[str]:
    """What stands against which shapes. Told, or guessed."""
    said = f"gpq says: {habit.message}" if told else f"probably {habit.message}"
    text = wrapped(safe(f"{where}: {said}"), limit, "", "  ")
    text += wrapped(safe(f"cure: {habit.cure}"), limit, "  ", "        ")
    if told:
        lost = [f"{each} ({MEANING[each]})" if each in MEANING else each for each in habit.freedoms]
        text += wrapped(safe(f"until then gpq leaves out: {', '.join(lost)}"), limit, "  ", "  ")
    return [*text, ""]
