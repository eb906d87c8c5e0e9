"""Which habits there are: loops register here. Owns their names; refuses two of one name."""

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
    """One ordinary training loop. `loop(gpq, options)` trains, and returns what must agree: models, tensors, numbers.

    `options` are those of job.loader() that make the shape. `right`: it must be right and say nothing, everywhere or in
    these shapes. `alone`: the measure is gpq with one replica, because plain PyTorch draws another order.
    `stops`: steps after which the first and the second attempt are asked to stop, counted from the beginning.
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
        """Must it be right there, and say nothing?"""
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
    """Register a loop; its name is that of the function, its description the docstring."""

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
