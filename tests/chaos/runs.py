"""The named runs of `make chaos`: what each repeats and how often, what it measured, and the bar. CI runs them smaller.

A run is a function of (times, seed) that returns what it measured. `@run(...)` puts it on the list. `head.py` has the
runs for the daemon, `server.py` those for servers and their jobs. `load` imports them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MODULES = ("tests.chaos.head", "tests.chaos.server")


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure and its limit: `at_most`, `at_least`, or none. `why`: explains a figure that misses its limit."""

    what: str
    reached: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    why: str = ""

    @property
    def good(self) -> bool:
        too_much = self.at_most is not None and self.reached > self.at_most
        return not too_much and not (self.at_least is not None and self.reached < self.at_least)

    @property
    def asked(self) -> str:
        bars = (("at most", self.at_most), ("at least", self.at_least))
        return ", ".join(f"{word} {number(bar)}" for word, bar in bars if bar is not None)


Body = Callable[[int, int], Sequence[Measured]]


@dataclass(frozen=True, slots=True)
class Run:
    """`times`: how often at full size. `unit`: what the run repeats, in words."""

    name: str
    row: str
    times: int
    unit: str
    body: Body

    @property
    def about(self) -> str:
        return (self.body.__doc__ or "").strip().splitlines()[0]


RUNS: dict[str, Run] = {}


def run(name: str, *, row: str, times: int, unit: str) -> Callable[[Body], Body]:
    """Put a function on the list. `row`: its row in the table of faults. The first line of its docstring describes it."""

    def listed(body: Body) -> Body:
        if name in RUNS:
            raise ValueError(f"two runs are called {name}")
        RUNS[name] = Run(name, row, times, unit, body)
        return body

    return listed


def load() -> dict[str, Run]:
    """All runs, by name, in the order of their rows."""
    for module in MODULES:
        importlib.import_module(module)
    return dict(sorted(RUNS.items(), key=lambda item: (float(item[1].row.split(",")[0]), item[0])))


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
