"""Habits as separate scripts for `gpq check`. Owns the list, what each verdict must name, and the judge.

The loops come from the table of habits. If the library reports a habit, it takes away some freedoms. Shapes that need
one of them get the verdict `told` with the habit's code, and all others are the same. If the library only suspects a
habit, it is told where it shows. If a loop is right, all shapes are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpq_agent.train.habits.table import HABITS, SUSPECTED

from gpq.check.shapes import Shape, compared_shapes
from gpq.verdicts import DIFFERS, SAME, TOLD

from .proven import PROVEN

# The names that gpq check gives to the shapes of the table.
CALLED = {
    "accumulate": "accumulating",
    "split": "split",
    "two": "two replicas",
    "two-acc": "two replicas, accumulating",
    "resize": "stopped and resumed on another number",
}
SCRIPT = """import gpq_agent.train as gpq
import torch
from tests.habits.catalogue import load

habit = load()[{name!r}]
torch.set_default_dtype(getattr(torch, habit.dtype))
habit.loop(gpq, {{}})
"""
# Loop -> code of the habit that gpq must name, or of several. None if all is right, and then gpq must report nothing.
PLANTED: dict[str, tuple[str, ...]] = {
    "lbfgs": ("closure",),
    "adam-closure": ("closure",),
    "hand-step": ("hand-step",),
    "gan": ("two-passes",),
    "sam-class": ("two-passes",),
    "two-passes": ("two-passes",),
    "retain-graph": ("two-passes",),
    "sam-by-hand": ("two-passes", "hand-step"),
    "optimizer-not-given": ("other-optimizer",),
    "scheduler-forgotten": ("forgotten-scheduler",),
    "ema-unguarded": ("state-in-pieces",),
    "rate-own-counter": ("own-rate",),
    "accumulation-by-hand": ("hand-accumulation",),
    "autograd-grad": ("hand-gradient",),
    "unfreeze-group": ("late-group",),
    "criterion-parameters": (),
    "range-epochs": ("own-epochs",),
    "break-early": ("own-break",),
    "hook-clip": ("grad-hook",),
    "polyak": ("step-value",),
    "norm-inverse": ("part-error",),
    "batch-norm": ("batch-norm",),
    "spectral-norm": ("moving-buffer",),
    "clip-adamw": (),
    "clip-value": (),
    "scaler-clip": (),
    "edit-scale": (),
    "zero-model-before": (),
    "zero-model-after": (),
    "zero-data-before": (),
    "edit-decay-data": (),
    "in-chunks": (),
    "one-cycle": (),
    "cosine": (),
    "warmup-lambda": (),
    "two-optimizers": (),
    "muon": (),
    "lion": (),
    "lamb": (),
    "adafactor": (),
    "tokens-weighed": (),
    "unfreeze-from": (),
    "unused-found": (),
    "checkpoint-reentrant-first": (),
    "checkpoint-reentrant-last": (),
    "batch-norm-grouped": (),
    "tail-of-one": (),
    "ema-guarded": (),
    "evaluate": (),
    "coefficient-of-the-step": (),
    "teacher-registered": (),
    "table-made-once": (),
    "each-example-normed": (),
}
# Of the loops in PROVEN, those that a guess must name in every shape that differs: loop -> code.
GUESSED = {"plateau-training-loss": "replicas-apart"}
# They leave an epoch after eight batches, or change their training later than the steps of a check.
LATER = (
    "break-early", "takewhile-counts", "islice-some", "islice-enumerate", "zip-range-short", "loss-by-index", "loss-later",
)  # fmt: skip
STEPS = dict.fromkeys(LATER, 20)


def write(name: str, folder: Path) -> Path:
    """The script of the loop `name`. Its interpreter must find this package."""
    path = folder / f"{name}.py"
    path.write_text(SCRIPT.format(name=name))
    return path


def faults(name: str, verdict: Mapping[str, Any]) -> list[str]:
    """What is wrong in the answer of `gpq check --json`, one line each."""
    rows = {row["shape"]: row for row in verdict["shapes"]}
    if name in PROVEN:
        shapes = [CALLED[shape] for shape in PROVEN[name]]
        if name in GUESSED:
            return _misguessed(GUESSED[name], shapes, rows)
        return [f"{shape}: {SAME}" for shape in shapes if rows[shape]["verdict"] == SAME]
    codes = PLANTED[name]
    told = {each["code"] for each in verdict["habits"]}
    suspected = {code for code in codes if HABITS[code].evidence == SUSPECTED}
    found = [f"{code} is not told" for code in codes if code not in told and code not in suspected]
    if suspected and told.isdisjoint(codes):
        found.append(f"none of {', '.join(codes)} shows")
    if not codes:
        found += [f"{code} is told, but nothing should be" for code in sorted(told)]
    for shape in compared_shapes(verdict["steps"]):
        seen, wanted = _seen(rows.get(shape.name)), _wanted(codes, shape)
        if seen not in wanted:
            found.append(f"{shape.name}: {seen}, not {' or '.join(wanted)}")
    return found


def _misguessed(code: str, shapes: list[str], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    named = {shape: row["habit"]["code"] for shape, row in rows.items() if row["verdict"] == DIFFERS and row["habit"]}
    found = [f"{shape}: {_seen(rows.get(shape))}, not {DIFFERS} {code}" for shape in shapes if named.get(shape) != code]
    right = [row for shape, row in rows.items() if shape not in shapes]
    return found + [f"{row['shape']}: {_seen(row)}, not {SAME}" for row in right if row["verdict"] != SAME]


def _wanted(codes: tuple[str, ...], shape: Shape) -> list[str]:
    """What the row of that shape may show. A suspected habit need not show in every shape."""
    needed = [code for code in codes if set(HABITS[code].freedoms) & set(shape.freedoms)]
    told = [f"{TOLD} {code}" for code in needed]
    return told if any(HABITS[code].evidence != SUSPECTED for code in needed) else [*told, SAME]


def _seen(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "no row"
    habit = row["habit"]
    if row["verdict"] == TOLD:
        return f"{TOLD} {habit['code']}"
    return " ".join(filter(None, [row["verdict"], habit["code"] if habit else "", row["what"], row["problem"]]))
