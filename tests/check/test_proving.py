"""What is said of shapes that were not all run to their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.check import proving
from gpq.check.running import Course
from gpq.check.shapes import REFERENCE, compared
from gpq.errors import TimedOut


def test_of_a_timeout_the_shapes_that_ended_are_told(tmp_path: Path) -> None:
    first, accumulating, split, two, both, _ = [
        Course(shape, tmp_path / str(number)) for number, shape in enumerate((REFERENCE, *compared(8)))
    ]
    first.over = split.over = two.over = True
    two.failed, two.log = "exit code 1", "two.log"
    asked = proving.Asked("train.py", (), "python", {}, "/", 8, 60.0)
    with pytest.raises(TimedOut) as caught:
        proving._whole([first, accumulating, split, two, both], asked)
    error = caught.value
    late = f"{accumulating.shape.name}; {both.shape.name}"
    assert error.message == f"not done after 60 s: {late}; what they printed: {tmp_path}"
    assert error.quoted == ("two replicas failed with exit code 1: two.log", "done: one replica; split")
