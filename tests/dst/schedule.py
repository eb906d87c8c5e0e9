"""Time, chance and the record of a simulated run: one heap of (time, number, function). It does not know what it runs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Run = Callable[[], None]


class Violation(Exception):
    """A promise was broken. Says which one and how."""


class Schedule:
    """Runs functions by time, then by the order of scheduling. `dice` decides what happens on the way."""

    def __init__(self, seed: str, *, tracing: bool = False) -> None:
        self.now = 0.0
        self.dice = random.Random(f"dice {seed}")
        self.events = 0
        self.trace: list[str] | None = [] if tracing else None
        self._heap: list[tuple[float, int, Run]] = []
        self._count = 0

    def at(self, when: float, run: Run) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, run))

    def after(self, seconds: float, run: Run) -> None:
        self.at(self.now + seconds, run)

    def run(self, until: float, finished: Callable[[], bool]) -> None:
        """Until that time, or until `finished` returns true. It is called after every event."""
        heap = self._heap
        while heap and not finished():
            if heap[0][0] > until:
                self.now = until
                return
            self.now, _, run = heapq.heappop(heap)
            self.events += 1
            run()

    def say(self, text: str, *values: Any) -> None:
        """For the trace, which exists only if somebody wants to read it."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f}  {text.format(*values)}")
