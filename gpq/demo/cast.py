"""The jobs of the demonstration, and the target of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One job of the cast."""

    name: str
    script: str  # under examples/
    arguments: tuple[str, ...]
    metric: str  # by its name in the script's log
    target: float
    higher: bool  # is a higher value better?

    def is_reached(self, value: float) -> bool:
        if self.higher:
            return value >= self.target
        return value <= self.target


# The base batch is so small that a larger one helps: most of a step's time does not depend on its
# examples.
SMALL_BATCH = ("--epochs", "25", "--batch-size", "8", "--lr", "0.02")
CAST = (
    Part("chargpt", "chargpt/train.py", ("--epochs", "8"), "held_out_loss", 2.0, higher=False),
    Part("digits", "digits/train.py", SMALL_BATCH, "accuracy", 0.97, higher=True),
    Part(
        "digits-small",
        "digits/train.py",
        (*SMALL_BATCH, "--width", "24"),
        "accuracy",
        0.97,
        higher=True,
    ),
)
