"""Notes below the table: how the shapes ran, and what could not be told from rounding."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.check.guesses import draws_numbers
from gpq.check.records import Facts, Run
from gpq.check.rounding import Rounding
from gpq.check.verdict import DIFFERS, ShapeView


def notes(reference: Run, rows: Sequence[ShapeView], rounding: Rounding, failure: str) -> list[str]:
    """`failure`: the error of the script in full precision."""
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
            "random numbers, such as dropout and augmentation, were drawn per example, but in "
            "a job each shape draws its own"
        )
    if draws_numbers(reference):
        lines.append(
            "some random numbers belong to no example and were the same in every part of a "
            "step, so their effect could not be told from rounding"
        )
    if facts:
        lines += _dropout(facts)
    return lines


def _dropout(facts: Facts) -> list[str]:
    if facts.compiled or not facts.loader:
        return [
            "dropout was off, because the check cannot control what a compiled model or a "
            "loop without job.loader() draws"
        ]
    if facts.recurrent:
        return [
            "dropout between the layers of recurrent modules was off, because each shape draws "
            "it differently"
        ]
    return []


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


def _steps(reference: Run, rounding: Rounding) -> list[str]:
    lines = []
    if reference.facts and not reference.facts.loader:
        lines.append(
            "the script does not use job.loader(), so gpq never accumulates or splits its steps"
        )
    if rounding.mixed and not draws_numbers(reference):
        lines.append(
            "the order of the examples in a batch changes the result, so the effect of "
            "rounding is unknown"
        )
    return lines


def _table(rows: Sequence[ShapeView]) -> list[str]:
    lines = []
    metrics = sorted({name for row in rows for name in row.metrics})
    if metrics:
        lines.append(
            f"logged values that differ: {', '.join(metrics)[:200]} (part of a batch has its own"
            " value)"
        )
    if any(row.verdict == DIFFERS for row in rows):
        lines.append("the habit behind a difference is a guess from what differs first")
    return lines
