"""Tests the judge of the table with invented attempts: what counts as right, told, told too late or silent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent import wire

from .catalogue import Habit
from .cells import HANG, LATE, RIGHT, RIGHT_TOLD, SILENT, TOLD, TRACEBACK, Run, judge
from .shapes import SHAPES

WANTED = {"weight": torch.tensor([3.0, 4.0])}
HABIT = Habit("some", "group", lambda gpq, options: None, False, "float64", (5, 18), 1e-4, False)
OFF = torch.tensor([3.0, 4.1])


class Attempts:
    """Folders as replicas leave them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, list[Run]()

    def add(self, codes: tuple[int | None, ...] = (0,), stopped: bool = False) -> Path:
        folder = self.folder / f"attempt-{len(self.runs) + 1}"
        folder.mkdir()
        self.runs.append(Run(list(codes), folder, stopped))
        return folder

    def verdict(self, shape: str) -> str:
        return judge(HABIT, SHAPES[shape], WANTED, self.runs)[0]


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def weights(folder: Path, value: torch.Tensor, rank: int = 0) -> None:
    torch.save({"weight": value}, folder / f"weights.{rank}.pt")


def reported(folder: Path, *freedoms: str) -> None:
    habit = wire.Habit("some", list(freedoms), "the loop does it", "do it not")
    (folder / wire.REPORT).write_bytes(wire.encode({"v": wire.VERSION, "kind": "habit", **habit._asdict()}))
    (folder / "stderr.0").write_text("gpq: the loop does it: do it not\n")


def failed(folder: Path, **failure: Any) -> None:
    (folder / "failure.0").write_text(json.dumps(failure))


def test_weights_that_agree_are_right(attempts: Attempts) -> None:
    weights(attempts.add(), WANTED["weight"] * (1 + 5e-5))
    assert attempts.verdict("accumulate") == RIGHT


def test_an_unreported_difference_is_silent(attempts: Attempts) -> None:
    weights(attempts.add(), WANTED["weight"] * (1 + 2e-4))
    assert attempts.verdict("accumulate") == SILENT


def test_not_a_number_is_silent(attempts: Attempts) -> None:
    weights(attempts.add(), torch.tensor([3.0, float("nan")]))
    assert attempts.verdict("one") == SILENT


def test_every_replica_must_agree(attempts: Attempts) -> None:
    folder = attempts.add((0, 0))
    weights(folder, WANTED["weight"])
    weights(folder, OFF, rank=1)
    assert attempts.verdict("two") == SILENT


@pytest.mark.parametrize(
    ("shape", "freedom", "verdict"),
    [
        ("accumulate", "accumulate", TOLD),
        ("accumulate", "split", SILENT),
        ("split", "split", TOLD),
        ("split", "accumulate", SILENT),
        ("two", "resize", TOLD),
        ("two", "accumulate", SILENT),
        ("two-acc", "accumulate", TOLD),
        ("two-acc", "retune", SILENT),
        ("one", "retune", TOLD),
    ],
)
def test_only_a_freedom_that_the_shape_needs_counts_as_told(
    attempts: Attempts, shape: str, freedom: str, verdict: str
) -> None:
    folder = attempts.add()
    weights(folder, OFF)
    reported(folder, freedom)
    assert attempts.verdict(shape) == verdict


def test_a_report_without_a_line_for_the_user_does_not_count_as_told(attempts: Attempts) -> None:
    folder = attempts.add()
    weights(folder, OFF)
    reported(folder, "accumulate")
    (folder / "stderr.0").write_text("gpq: out of memory\n")
    assert attempts.verdict("accumulate") == SILENT


def test_other_lines_take_no_freedom_if_a_habit_is_reported(attempts: Attempts) -> None:
    folder = attempts.add()
    weights(folder, OFF)
    reported(folder, "split")
    with open(folder / "stderr.0", "a") as stream:
        stream.write("gpq: the loop accumulates\n")
    assert attempts.verdict("accumulate") == SILENT


def test_a_line_that_names_the_freedom_counts_as_told(attempts: Attempts) -> None:
    folder = attempts.add()
    weights(folder, OFF)
    (folder / "stderr.0").write_text("gpq: gradient noise is not measured\nsome library: split it\n")
    assert attempts.verdict("split") == SILENT
    (folder / "stderr.0").write_text("gpq: the loop has two passes, so steps are not split\n")
    assert attempts.verdict("split") == TOLD


def test_a_right_shape_with_a_report_is_right_and_told(attempts: Attempts) -> None:
    folder = attempts.add()
    weights(folder, WANTED["weight"])
    reported(folder, "accumulate")
    assert attempts.verdict("accumulate") == RIGHT_TOLD
    assert attempts.verdict("one") == RIGHT  # no freedom that this shape needs is lost


@pytest.mark.parametrize(("told_in", "verdict"), [(0, TOLD), (1, TOLD), (2, LATE)])
def test_a_report_after_the_last_resize_is_late(attempts: Attempts, told_in: int, verdict: str) -> None:
    folders = [attempts.add(stopped=number < 2) for number in range(3)]
    weights(folders[-1], OFF)
    reported(folders[told_in], "resize")
    assert attempts.verdict("resize") == verdict


def test_an_error_with_a_hint_is_a_refusal_and_any_other_is_a_traceback(attempts: Attempts) -> None:
    folder = attempts.add((1,))
    failed(folder, error="GpqTrainError", message="no", hint="do this")
    assert attempts.verdict("two") == TOLD
    failed(folder, error="GpqTrainError", message="no", hint="")
    assert attempts.verdict("two") == TRACEBACK
    failed(folder, error="RuntimeError", message="no", hint="")
    assert attempts.verdict("two") == TRACEBACK


def test_a_refusal_at_the_resize_is_late(attempts: Attempts) -> None:
    first, second = attempts.add(stopped=True), attempts.add((1, 1))
    failed(second, error="GpqTrainError", message="no", hint="do this")
    assert attempts.verdict("resize") == LATE
    reported(first, "resize")
    assert attempts.verdict("resize") == TOLD


def test_a_replica_that_does_not_end_hangs(attempts: Attempts) -> None:
    attempts.add((None, None))
    assert attempts.verdict("two") == HANG
