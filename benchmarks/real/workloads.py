"""The workload: which training arrives when.

Every script exits with 1 if it misses its target, so a job that completes has reached it. On the
machine that wrote `results/real.md` the trainings take 17 to 88 s alone on one slot. `--alone`
measures them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "train.py"
CHARGPT = ROOT / "examples" / "chargpt" / "train.py"
FOLDS = Path(__file__).resolve().parent / "folds.py"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job. `at`: seconds after the start. `gpus`: of a command of fixed size, 0 for a script
    that uses the library."""

    at: float
    name: str
    script: Path
    arguments: tuple[str, ...]
    gpus: int = 0


def digits(at: float, name: str, epochs: int) -> Arrival:
    """A small convolutional network. Most of a step does not depend on the batch size."""
    arguments = ("--batch-size", "8", "--lr", "0.02", "--width", "48")
    return Arrival(at, name, DIGITS, (*arguments, "--epochs", str(epochs)))


def chargpt(at: float, name: str, epochs: int) -> Arrival:
    """A small transformer on text."""
    return Arrival(at, name, CHARGPT, ("--epochs", str(epochs)))


def wide(at: float, name: str, epochs: int) -> Arrival:
    """A larger transformer. A step is mostly arithmetic, so two cores are worth nearly two."""
    arguments = ("--width", "160", "--layers", "3", "--length", "96", "--text", "300000")
    return Arrival(at, name, CHARGPT, (*arguments, "--epochs", str(epochs)))


def folds(at: float, name: str, count: int, *, gpus: int = 1) -> Arrival:
    """A command of fixed size that does not know gpq."""
    arguments = ("--folds", str(count), "--processes", str(gpus))
    return Arrival(at, name, FOLDS, arguments, gpus)


def alone(arrival: Arrival) -> Arrival:
    """The same training, first in an empty queue."""
    return replace(arrival, at=0.0)


SHORT = (
    chargpt(0, "chargpt", 14),
    digits(30, "digits", 50),
    folds(70, "folds", 60),
    wide(110, "wide", 4),
    folds(160, "folds-2", 60, gpus=2),
)
