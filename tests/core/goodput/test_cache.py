"""A cache computes a question once, several together, and forgets the oldest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpq.core.goodput.models import Memo


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


def test_a_question_that_cannot_be_answered_leaves_the_others() -> None:
    inverses = Memo(lambda questions: [1 / question for question in questions], 9, failed=None)
    assert inverses.many([2, 0, 4]) == [0.5, None, 0.25]
    assert inverses.one(0) is None
    with pytest.raises(ZeroDivisionError):
        Memo(lambda questions: [1 / question for question in questions], 9).many([2, 0])
