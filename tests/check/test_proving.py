"""What gpq check says if not all shapes ran to their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from gpq.check import proving
from gpq.check.runner import CheckRequest, Runner, ShapeRun
from gpq.check.shapes import REFERENCE, Shape, compared_shapes
from gpq.errors import TimedOut


def test_a_timeout_names_the_shapes_that_ended(tmp_path: Path) -> None:
    first, accumulating, split, two, both, _ = [
        ShapeRun(shape, tmp_path / str(number)) for number, shape in enumerate((REFERENCE, *compared_shapes(8)))
    ]
    first.over = split.over = two.over = True
    two.failed, two.log = "exit code 1", "two.log"
    asked = CheckRequest("train.py", (), "python", {}, "/", 8, 60.0)
    with pytest.raises(TimedOut) as caught:
        proving._whole([first, accumulating, split, two, both], asked)
    error = caught.value
    late = f"{accumulating.shape.name} / {both.shape.name}"
    assert error.message == f"not done after 60 s: {late}. Their output is in {tmp_path}"
    assert error.quoted == ("two replicas failed with exit code 1: two.log", "done: one replica / split")


@dataclass
class Fails:
    """A runner whose reference fails in full precision, or always."""

    folder: Path
    always: bool = False
    exact: bool = True
    runs: list[bool] = field(default_factory=list)

    def run(self, shapes: Sequence[Shape], _: float, __: Callable[[str], None]) -> list[ShapeRun]:
        self.runs.append(self.exact)
        courses = [ShapeRun(shape, self.folder) for shape in shapes]
        if self.exact or self.always:
            courses[0].failed, courses[0].log = "exit code 1", str(self.folder / "log")
        return courses


@pytest.mark.parametrize(("records", "always"), [(True, False), (True, True), (False, True)])
def test_a_reference_that_fails_in_full_precision_runs_again(tmp_path: Path, records: bool, always: bool) -> None:
    (tmp_path / "log").write_text("before\n[rank0]: RuntimeError: picky\n")
    if records:  # the script reached gpq.init()
        (tmp_path / "1.0.jsonl").touch()
    runner = Fails(tmp_path, always)
    courses, failure = proving._courses(cast(Runner, runner), (REFERENCE,), 1.0, lambda _: None)
    assert runner.runs == ([True, False] if records else [True])
    assert failure == ("RuntimeError: picky" if records else "")
    assert bool(courses[0].failed) is always
