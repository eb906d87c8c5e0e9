"""A cache computes a question once, several together, and forgets the oldest."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.core.goodput.cache import Memo


def test_known_answers_are_reused_and_unknown_ones_computed_together() -> None:
    asked: list[list[int]] = []

    def squares(questions: Sequence[int]) -> list[int]:
        asked.append(list(questions))
        return [question**2 for question in questions]

    memo = Memo(squares, 3)
    assert memo.many([2, 3, 2]) == [4, 9, 4]
    assert memo.many([3, 5, 2]) == [9, 25, 4]
    assert memo.one(5) == 25
    assert asked == [[2, 3], [5]]
    assert memo.many([6, 7, 2, 8]) == [36, 49, 4, 64], "more than it may remember"
    assert asked[2:] == [[6, 7, 8]]
    assert memo.many([7, 8, 2]) == [49, 64, 4]
    assert asked[3:] == [[2]], "2 was the oldest"
    memo.clear()
    assert memo.one(8) == 64
    assert asked[4:] == [[8]]
