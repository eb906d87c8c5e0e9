"""Answers that are remembered, and asked for many at once: what is not known yet is computed side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """`compute` answers a list of different questions in their order. The oldest answers are forgotten beyond `room`.

    Several threads may ask: at worst an answer is computed twice.
    """

    def __init__(self, compute: Callable[[Sequence[K]], Sequence[V]], room: int) -> None:
        self._compute = compute
        self._known: dict[K, V] = {}
        self.room = room

    def one(self, question: K) -> V:
        try:
            return self._known[question]
        except KeyError:
            return self.many([question])[0]

    def many(self, questions: Sequence[K]) -> list[V]:
        missing = [question for question in dict.fromkeys(questions) if question not in self._known]
        fresh: dict[K, V] = {}
        if missing:
            fresh = dict(zip(missing, self._compute(missing), strict=True))
            self._known.update(fresh)
        found = [fresh[question] if question in fresh else self._known[question] for question in questions]
        while len(self._known) > self.room:
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._known[next(iter(self._known))]
        return found

    def clear(self) -> None:
        self._known.clear()
