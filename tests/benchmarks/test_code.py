"""The ratchets of the code: what they count, and that none has risen."""

from __future__ import annotations

import ast
import json

import pytest

from benchmarks.code import RATCHETS, code_lines, decisions, functions, is_participle, ratchets, risen, used_once

SOURCE = """
class Queue:
    def settled(self, jobs):
        '''Words
        over two lines.'''
        # a comment
        return [self._one(job) for job in jobs if job and job.id]

    def _one(self, job):
        return self._twice(job) + self._twice(job)

    def _twice(self, job):
        return 2 if job else 3
"""


def test_no_ratchet_has_risen() -> None:
    assert risen(ratchets(), json.loads(RATCHETS.read_text())) == [], "make measure-code says what to do"


def test_a_figure_above_its_ratchet_is_named() -> None:
    assert risen({"lines": 12.0, "names": 1.0}, {"lines": 11.0, "names": 1.0}) == [
        "lines: 12.0, and the ratchet is 11.0"
    ]


def test_functions_are_counted_by_what_a_reader_meets() -> None:
    tree = ast.parse(SOURCE)
    settled, one, twice = functions(tree)
    assert [decisions(function) for function in (settled, one, twice)] == [3, 0, 1]
    assert code_lines(settled, SOURCE.splitlines()) == 2
    assert used_once(tree) == ["_one"]


@pytest.mark.parametrize(
    ("name", "expected"), [("settled", True), ("_kept", True), ("seed", False), ("settle_all", False), ("state", False)]
)
def test_a_lone_participle_is_no_name_of_a_function(name: str, expected: bool) -> None:
    assert is_participle(name) is expected
