"""Answers that are remembered, and asked for many at once: what is not known yet is computed side
by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_NOTHING: Any = object()


class Memo(Generic[K, V]):
    """`compute` answers a list of different questions in their order. The oldest answers are
    forgotten beyond `room`.

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
        found: list[V] = [self._known.get(question, _NOTHING) for question in questions]
        places: dict[K, list[int]] = {}
        for place, answer in enumerate(found):
            if answer is _NOTHING:
                places.setdefault(questions[place], []).append(place)
        if places:
            for (question, same), answer in zip(
                places.items(), self._compute(list(places)), strict=True
            ):
                self._known[question] = answer
                for place in same:
                    found[place] = answer
        while len(self._known) > self.room:
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._known[next(iter(self._known))]
        return found

    def clear(self) -> None:
        self._known.clear()
