"""Remarks below the table: how the shapes were run, and what could not be told from rounding."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.check.judgement.guesses import drawn
from gpq.check.judgement.rounding import Rounding
from gpq.check.records import Facts, Run
from gpq.check.verdict import DIFFERS, ShapeView


def notes(reference: Run, rows: Sequence[ShapeView], rounding: Rounding, failure: str) -> list[str]:
    """`failure`: of the script in full precision."""
    return [
        *_random_numbers(reference),
        _precision(rounding.coarse, failure),
        *_steps(reference, rounding),
        *_table(rows),
    ]


def _random_numbers(reference: Run) -> list[str]:
    lines = []
    facts = reference.facts
    if facts and facts.loader and not facts.compiled:
        lines.append(
            "random numbers were drawn by example, dropout and augmentation alike: a job's shapes"
            " draw their own"
        )
    if drawn(reference):
        lines.append(
            "some random numbers belong to no example, and were drawn alike in every part of a"
            " step: what they change could not be told from rounding"
        )
    if facts:
        lines += _dropout(facts)
    return lines


def _dropout(facts: Facts) -> list[str]:
    if facts.compiled or not facts.loader:
        return ["dropout was off: what a compiled model draws, or a loop of its own, nobody sees"]
    if facts.recurrent:
        return [
            "dropout between the layers of recurrent modules was off: no shape draws as another"
            " does"
        ]
    return []


def _precision(coarse: float, failure: str) -> str:
    if not coarse:
        return "all was computed in full precision: no autocast, no TF32"
    reason = "weights in half precision"
    if failure:
        reason = f"not in full precision, where the script fails ({failure[:200]})"
    return (
        f"{reason}: judged at the first step that "
        f"is made otherwise, to within 3 units in the last place ({coarse:.1%})"
    )


def _steps(reference: Run, rounding: Rounding) -> list[str]:
    lines = []
    if reference.facts and not reference.facts.loader:
        lines.append("the script has a loop of its own: gpq never accumulates or splits its steps")
    if rounding.mixed and not drawn(reference):
        lines.append(
            "the order of the examples in a batch changes what is trained, so rounding could not be"
            " told apart"
        )
    return lines


def _table(rows: Sequence[ShapeView]) -> list[str]:
    lines = []
    metrics = sorted({name for row in rows for name in row.metrics})
    if metrics:
        lines.append(
            f"logged otherwise: {', '.join(metrics)[:200]} (a part of a batch has a value of its"
            " own)"
        )
    if any(row.verdict == DIFFERS for row in rows):
        lines.append("a habit behind a difference is a guess, from what differs first")
    return lines
