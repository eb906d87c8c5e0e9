"""Habits as scripts of their own for `gpq check`, one in each: owns which, what the verdict must name, and the judge of it.

The loops are those of the table of habits. A habit that the library tells takes away some freedoms: shapes that need one of
those are told, by that habit's code, and all others come out the same. Of a habit that is right, every shape does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpq_agent.train.habits import HABITS

from gpq.check.shapes import Shape, compared
from gpq.check.verdict import SAME, TOLD

SCRIPT = """import gpq_agent.train as gpq
import torch
from tests.habits.catalogue import load

habit = load()[{name!r}]
torch.set_default_dtype(getattr(torch, habit.dtype))
habit.loop(gpq, {{}})
"""
# Loop -> code of the habit that must be named; "" where all is right, and nothing may be told.
PLANTED = {
    "lbfgs": "closure",
    "adam-closure": "closure",
    "hand-step": "hand-step",
    "hand-step-momentum": "hand-step",
    "gan": "step-between",
    "sam-class": "two-passes",
    "sam-by-hand": "hand-step",
    "optimizer-not-given": "other-optimizer",
    "scheduler-forgotten": "forgotten-scheduler",
    "scaler-forgotten": "forgotten-scaler",
    "ema-forgotten": "forgotten-copy",
    "ema-dict": "forgotten-copy",
    "ema-unguarded": "state-in-pieces",
    "rate-own-counter": "own-rate",
    "accumulation-by-hand": "hand-accumulation",
    "zero-every-second": "carried-gradient",
    "zero-never": "carried-gradient",
    "autograd-grad": "hand-gradient",
    "tokens": "token-loss",
    "sum-loss": "token-loss",
    "loss-in-batch": "batch-loss",
    "unfreeze-group": "late-group",
    "criterion-parameters": "outside-parameters",
    "own-loader": "own-loader",
    "range-epochs": "own-epochs",
    "break-early": "own-break",
    "hook-scale": "grad-hook",
    "batch-norm": "batch-norm",
    "spectral-norm": "moving-buffer",
    "plateau-training-loss": "replicas-apart",
    "clip-adamw": "",
    "clip-value": "",
    "scaler-clip": "",
    "edit-scale": "",
    "zero-model-before": "",
    "zero-model-after": "",
    "one-cycle": "",
    "cosine": "",
    "warmup-lambda": "",
    "two-optimizers": "",
    "muon": "",
    "lion": "",
    "lamb": "",
    "adafactor": "",
    "tokens-weighed": "",
    "two-passes": "",
    "retain-graph": "",
    "unfreeze-from": "",
    "unused-found": "",
    "checkpoint-reentrant-first": "",
    "checkpoint-reentrant-last": "",
    "tail-of-one": "",
    "ema-guarded": "",
    "evaluate": "",
}


def write(name: str, folder: Path) -> Path:
    """The script of the loop `name`; what runs it must find this package."""
    path = folder / f"{name}.py"
    path.write_text(SCRIPT.format(name=name))
    return path


def faults(name: str, verdict: Mapping[str, Any]) -> list[str]:
    """What is wrong in the answer of `gpq check --json`, a line each."""
    code = PLANTED[name]
    rows = {row["shape"]: row for row in verdict["shapes"]}
    found = [f"told {each['code']}, and nothing is to be told" for each in verdict["habits"] if not code]
    for shape in compared(verdict["steps"]):
        row = rows.get(shape.name)
        wanted, seen = _wanted(code, shape), _seen(row) if row else "no row"
        if seen != wanted:
            found.append(f"{shape.name}: {seen}, not {wanted}")
    return found


def _wanted(code: str, shape: Shape) -> str:
    needed = set(HABITS[code].freedoms) & set(shape.freedoms) if code else ()
    return f"{TOLD} {code}" if needed else SAME


def _seen(row: Mapping[str, Any]) -> str:
    habit = row["habit"]
    return " ".join(filter(None, [row["verdict"], habit["code"] if habit else "", row["what"], row["problem"]]))
