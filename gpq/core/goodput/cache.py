"""A cache that answers many questions at once and computes all unknown answers together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_NOTHING: Any = object()


class Memo(Generic[K, V]):
    """`compute` answers a list of different questions in their order. Beyond `room` the oldest
    answers are forgotten.

    Several threads may ask. At worst an answer is computed twice.
    """

    def __init__(
        self, compute: Callable[[Sequence[K]], Sequence[V]], room: int, failed: Any = _NOTHING
    ) -> None:
        """`failed`: the answer to a question that `compute` cannot answer. The others are answered
        without it. By default the error is raised."""
        self._compute, self._failed = compute, failed
        self._answers: dict[K, V] = {}
        self.room = room

    def one(self, question: K) -> V:
        try:
            return self._answers[question]
        except KeyError:
            return self.many([question])[0]

    def many(self, questions: Sequence[K]) -> list[V]:
        answers: list[V] = [self._answers.get(question, _NOTHING) for question in questions]
        places: dict[K, list[int]] = {}
        for place, answer in enumerate(answers):
            if answer is _NOTHING:
                places.setdefault(questions[place], []).append(place)
        if places:
            for (question, same), answer in zip(
                places.items(), self._computed(list(places)), strict=True
            ):
                self._answers[question] = answer
                for place in same:
                    answers[place] = answer
        while len(self._answers) > self.room:
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._answers[next(iter(self._answers))]
        return answers

    def _computed(self, questions: Sequence[K]) -> Sequence[V]:
        try:
            return self._compute(questions)
        except Exception:
            if self._failed is _NOTHING:
                raise
            if len(questions) == 1:
                return [self._failed]
            return [self._computed([question])[0] for question in questions]

    def clear(self) -> None:
        self._answers.clear()
