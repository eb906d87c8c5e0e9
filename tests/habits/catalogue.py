"""All habits: loops register here. Owns their names and refuses a duplicate."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Loop = Callable[[Any, dict[str, Any]], Any]
GROUPS = (
    "clipping",
    "gradients",
    "clearing",
    "optimizers",
    "schedules",
    "copies",
    "passes",
    "parameters",
    "losses",
    "rounds",
    "kept",
    "early",
)


@dataclass(frozen=True)
class Habit:
    """One ordinary training loop. `loop(gpq, options)` trains and returns what must agree: models, tensors, numbers.

    `options` are the options of job.loader() that make the shape. `right`: the loop must be right and print nothing,
    everywhere or in these shapes. `alone`: compare with gpq on one replica, because plain PyTorch draws another order.
    `stops`: the steps after which the test stops the first and the second attempt, counted from the beginning.
    """

    name: str
    group: str
    loop: Loop
    right: bool | tuple[str, ...]
    dtype: str
    stops: tuple[int, int]
    tolerance: float
    alone: bool

    def demanded(self, shape: str) -> bool:
        """Whether the loop must be right in this shape and print nothing."""
        return self.right if isinstance(self.right, bool) else shape in self.right

    @property
    def what(self) -> str:
        return " ".join((self.loop.__doc__ or "").split())


HABITS: dict[str, Habit] = {}


def habit(
    *,
    right: bool | tuple[str, ...] = False,
    dtype: str = "float64",
    stops: tuple[int, int] = (5, 18),
    tolerance: float = 1e-4,
    alone: bool = False,
) -> Callable[[Loop], Loop]:
    """Register a loop. Its name comes from the function, its description from the docstring."""

    def register(loop: Loop) -> Loop:
        name = loop.__name__.replace("_", "-")
        assert name not in HABITS, name
        HABITS[name] = Habit(name, loop.__module__.rpartition("_")[2], loop, right, dtype, stops, tolerance, alone)
        return loop

    return register


def load() -> dict[str, Habit]:
    """All habits, in the order of the groups."""
    for group in GROUPS:
        importlib.import_module(f"tests.habits.loops_{group}")
    return HABITS
