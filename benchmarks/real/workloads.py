"""The workloads: which training arrives when.

Every script exits with 1 if it misses its target, so a job that completes has reached it. On the
machine that wrote `results/real.md` the trainings of SHORT take 17 to 88 s alone on one slot, and
those of DAY 45 to 230 s. `--alone` measures them.
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


def digits(at: float, name: str, epochs: int, *, width: int = 48) -> Arrival:
    """A small convolutional network. Most of a step does not depend on the batch size."""
    arguments = (
        "--batch-size",
        "8",
        "--lr",
        "0.02",
        "--epochs",
        str(epochs),
        "--width",
        str(width),
    )
    return Arrival(at, name, DIGITS, arguments)


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
# The moments are those of a Poisson process with seed 1, stretched to 900 s.
DAY = (
    chargpt(0, "chargpt-a", 32),
    digits(15, "digits-a", 200),
    folds(190, "folds-a", 175),
    wide(325, "wide-a", 11),
    digits(355, "digits-b", 145),
    chargpt(415, "chargpt-b", 21),
    folds(475, "folds-b", 145, gpus=2),
    wide(570, "wide-b", 5),
    digits(720, "digits-c", 270),
    chargpt(730, "chargpt-c", 25),
    digits(735, "digits-d", 200, width=24),
    wide(900, "wide-c", 6),
)
WORKLOADS = {"short": SHORT, "day": DAY}
