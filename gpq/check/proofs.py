"""From a kept verdict of `gpq check` to the proof that travels with a job: which freedoms it opens,
and which it takes."""

from __future__ import annotations

from gpq.check.shapes import LEAST_STEPS, compared
from gpq.rpc.requests import ProofMessage

SAME, TOLD = "same", "told"
RETUNE = "retune"
FREEDOMS = ("accumulate", "split", "resize", RETUNE)
NEEDED = {shape.name: shape.freedoms for shape in compared(LEAST_STEPS)}
MOST_CHARACTERS = 300


def proof(verdict: dict[str, object]) -> ProofMessage | None:
    """None where it has no row that can be read. A shape of several freedoms takes them only where
    none of them is lost already: two replicas that accumulate differ where accumulating does."""
    rows = _rows(verdict)
    bad_rows = [row for row in rows if row["verdict"] != SAME]
    lost_freedoms: set[str] = set()
    for row in sorted(bad_rows, key=lambda row: len(_needed(row))):
        freedoms = _needed(row)
        if row["verdict"] == TOLD or not lost_freedoms & set(freedoms):
            lost_freedoms.update(freedoms)
    same_freedoms = {
        freedom
        for freedom in FREEDOMS
        if freedom not in lost_freedoms
        and any(freedom in _needed(row) for row in rows)
        and all(row["verdict"] == SAME for row in rows if freedom in _needed(row))
    }
    if same_freedoms and not bad_rows and not verdict.get("coarse"):
        same_freedoms.add(RETUNE)
    if not rows:
        return None
    return ProofMessage(
        program=str(verdict.get("program"))[:64],
        same=[freedom for freedom in FREEDOMS if freedom in same_freedoms],
        lost=[freedom for freedom in FREEDOMS if freedom in lost_freedoms],
        message="; ".join(f"{row['shape']}: {_said(row)}" for row in bad_rows)[:MOST_CHARACTERS],
        at=str(verdict.get("at"))[:25],
    )


def _rows(verdict: dict[str, object]) -> list[dict[str, object]]:
    shapes = verdict.get("shapes")
    if not isinstance(shapes, list):
        return []
    return [
        row
        for row in shapes
        if isinstance(row, dict) and row.get("shape") in NEEDED and "verdict" in row
    ]


def _needed(row: dict[str, object]) -> tuple[str, ...]:
    """The freedoms of its shape, and where a habit was told, all that this takes."""
    habit = row.get("habit")
    if (
        row["verdict"] == TOLD
        and isinstance(habit, dict)
        and isinstance(habit.get("freedoms"), list)
    ):
        return tuple(freedom for freedom in FREEDOMS if freedom in habit["freedoms"])
    return NEEDED[str(row["shape"])]


def _said(row: dict[str, object]) -> str:
    habit = row.get("habit")
    code = habit.get("code") if row["verdict"] == TOLD and isinstance(habit, dict) else ""
    return f"{row['verdict']} ({code})" if code else str(row["verdict"])
