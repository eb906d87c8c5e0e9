"""What part of a verdict travels with a job, and which scripts and arguments find it again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from gpq import paths, verdicts
from gpq.verdicts import FoundHabit, ShapeView, Verdict, proof

ACCUMULATING, SPLIT, TWO, BOTH, RESUMED = (
    "accumulating",
    "split",
    "two replicas",
    "two replicas, accumulating",
    "stopped and resumed on another number",
)
NEXT = FoundHabit("own-next", ["accumulate", "split", "resize"], "", "")


def row(shape: str, judgement: str = "same", habit: FoundHabit | None = None) -> ShapeView:
    return ShapeView(shape, judgement, None, None, "", habit, [], "", "")


def made_of(rows: list[ShapeView], files: dict[str, str] | None = None, coarse: float = 0.0) -> Verdict:
    at = "2026-11-27T10:00:00Z"
    return Verdict("train.py", [], "p", files or {}, "", "", "same", 8, 4, rows, [], [], coarse, 1.0, at)


def verdict(told: FoundHabit | None = None, coarse: float = 0.0, **judgements: str) -> Verdict:
    """By the first letter of each shape's name. A shape without an argument is `same`."""
    shapes = (("a", ACCUMULATING), ("s", SPLIT), ("t", TWO), ("b", BOTH), ("r", RESUMED))
    return made_of([row(shape, judgements.get(word, "same"), told) for word, shape in shapes], coarse=coarse)


@pytest.mark.parametrize(
    ("found", "same", "lost", "message"),
    [
        (verdict(), "accumulate split resize retune", "", ""),
        (verdict(coarse=0.02), "accumulate split resize", "", ""),
        (
            verdict(a="differs", b="differs"),
            "split",
            "accumulate",
            "accumulating: differs / two replicas, accumulating: differs",
        ),
        (verdict(b="failed"), "split", "accumulate resize", "two replicas, accumulating: failed"),
        (verdict(r="differs"), "accumulate split", "resize", "stopped and resumed on another number: differs"),
        (
            verdict(NEXT, s="told"),
            "",
            "accumulate split resize",
            "split: told (own-next)",
        ),
    ],
)
def test_a_freedom_is_open_if_all_its_shapes_are_the_same_and_lost_otherwise(
    found: Verdict, same: str, lost: str, message: str
) -> None:
    made = proof(found)
    assert made is not None
    assert (made.same, made.lost) == (same.split(), lost.split())
    assert (made.message, made.program, made.at) == (message, "p", "2026-11-27T10:00:00Z")


def test_a_verdict_without_a_known_shape_proves_nothing() -> None:
    for rows in ([], [row("of a later version")]):
        assert proof(made_of(rows)) is None
    made = proof(made_of([row(TWO)]))
    assert made is not None
    assert made.same == ["resize", "retune"], "gpq never accumulates or splits in a script with its own loop"


def test_a_verdict_belongs_to_a_script_and_its_modules_whatever_numbers_are_in_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "home"))
    script, module = tmp_path / "train.py", tmp_path / "model.py"
    script.write_text("1")
    module.write_text("2")
    files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (script, module)}
    checked = ["--lr", "0.1", "--accum", "1", "--out=runs/7", "-1e-3", "resnet18"]
    assert verdicts.saved_verdict(str(script), checked) is None
    verdicts.keep(verdicts.place(str(script), checked), made_of([], files))
    like = ["--lr", "3e-4", "--accum", "1.0", "--out=runs/12", "5", "resnet18"]
    found = verdicts.saved_verdict(str(script), like)
    assert found is not None
    assert verdicts.changed_file(found) == ""
    for place, word in ((3, "4"), (3, "0"), (6, "resnet50"), (4, "--out=other/7")):
        assert verdicts.saved_verdict(str(script), [*like[:place], word, *like[place + 1 :]]) is None
    module.write_text("3")
    assert verdicts.changed_file(found) == str(module)
    module.unlink()
    assert verdicts.changed_file(found) == str(module)


def test_the_oldest_verdicts_are_deleted_and_damaged_ones_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "home"))
    script = str(tmp_path / "train.py")
    place = verdicts.place(script, [])
    verdicts.keep(place, made_of([], {script: "x"}))
    assert verdicts.saved_verdict(script, []) is not None
    good = json.loads(Path(place).read_text())
    damaged = ({"files": {}}, {"files": {script: 3}}, {"shapes": 3}, {"shapes": [3]}, {"shapes": [{"shape": TWO}]})
    for content in ("[]", "{", "{}", *(json.dumps({**good, **part}) for part in damaged)):
        Path(place).write_text(content)
        assert verdicts.saved_verdict(script, []) is None
    for number in range(verdicts.MOST):
        verdicts.keep(os.path.join(paths.verdicts(), f"{number}.json"), made_of([]))
        os.utime(os.path.join(paths.verdicts(), f"{number}.json"), (number + 10**10, number + 10**10))
    assert len(os.listdir(paths.verdicts())) == verdicts.MOST
    assert not os.path.exists(place)
