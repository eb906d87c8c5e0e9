"""Turns a saved verdict of `gpq check` into the proof that travels with a job: which freedoms it
confirms, and which it takes."""

from __future__ import annotations

from gpq_agent.wire import FREEDOMS

from gpq.check.shapes import LEAST_STEPS, compared_shapes
from gpq.check.verdict import SAME, TOLD
from gpq.rpc.requests import ProofMessage

RETUNE = "retune"
NEEDED = {shape.name: shape.freedoms for shape in compared_shapes(LEAST_STEPS)}
MOST_CHARACTERS = 300


def proof(verdict: dict[str, object]) -> ProofMessage | None:
    """The proof, or None if the verdict has no readable row."""
    rows = _rows(verdict)
    if not rows:
        return None
    bad_rows = [row for row in rows if row["verdict"] != SAME]
    lost_freedoms = _lost_freedoms(bad_rows)
    same_freedoms = {
        freedom for freedom in FREEDOMS if freedom not in lost_freedoms and _is_same(freedom, rows)
    }
    if same_freedoms and not bad_rows and not verdict.get("coarse"):
        same_freedoms.add(RETUNE)
    return ProofMessage(
        program=str(verdict.get("program"))[:64],
        same=_in_order(same_freedoms),
        lost=_in_order(lost_freedoms),
        message=" / ".join(f"{row['shape']}: {_explanation(row)}" for row in bad_rows)[
            :MOST_CHARACTERS
        ],
        at=str(verdict.get("at"))[:25],
    )


def _lost_freedoms(bad_rows: list[dict[str, object]]) -> set[str]:
    """A shape that needs several freedoms takes them only if none of them is lost already. If
    accumulating differs, two replicas that accumulate differ too."""
    lost_freedoms: set[str] = set()
    for row in sorted(bad_rows, key=lambda row: len(_freedoms(row))):
        freedoms = _freedoms(row)
        if row["verdict"] == TOLD or not lost_freedoms & set(freedoms):
            lost_freedoms.update(freedoms)
    return lost_freedoms


def _is_same(freedom: str, rows: list[dict[str, object]]) -> bool:
    """Is there a shape that needs this freedom, and are all such shapes the same?"""
    verdicts = [row["verdict"] for row in rows if freedom in _freedoms(row)]
    return bool(verdicts) and all(verdict == SAME for verdict in verdicts)


def _in_order(freedoms: set[str]) -> list[str]:
    return [freedom for freedom in FREEDOMS if freedom in freedoms]


def _rows(verdict: dict[str, object]) -> list[dict[str, object]]:
    shapes = verdict.get("shapes")
    if not isinstance(shapes, list):
        return []
    return [
        row
        for row in shapes
        if isinstance(row, dict) and row.get("shape") in NEEDED and "verdict" in row
    ]


def _freedoms(row: dict[str, object]) -> tuple[str, ...]:
    """The freedoms of its shape. If the library reported a habit, all freedoms that the habit
    takes."""
    habit = row.get("habit")
    if (
        row["verdict"] == TOLD
        and isinstance(habit, dict)
        and isinstance(habit.get("freedoms"), list)
    ):
        return tuple(freedom for freedom in FREEDOMS if freedom in habit["freedoms"])
    return NEEDED[str(row["shape"])]


def _explanation(row: dict[str, object]) -> str:
    habit = row.get("habit")
    code = habit.get("code") if row["verdict"] == TOLD and isinstance(habit, dict) else ""
    if code:
        return f"{row['verdict']} ({code})"
    return str(row["verdict"])
