"""Rows and their verdicts: reports come first, malformed records are left out, and habits are joined across shapes."""

from __future__ import annotations

import json
from pathlib import Path

from gpq_agent import wire

from gpq.check.guesses import habit, join
from gpq.check.judge import Judge
from gpq.check.records import Facts, Run, Step, Told, read
from gpq.check.rows import doubts, habits, rows, worst
from gpq.check.runner import ShapeRun
from gpq.check.shapes import REFERENCE, compared_shapes
from gpq.source import Script
from gpq.verdicts import Verdict
from gpq.views.verdict import lines

SHAPES = compared_shapes(8)
NOTHING = Script("")
PASSES = Told(
    "two-passes", ["accumulate", "split", "made up"], "the loop clears gradients between two passes", "none is needed"
)
RESIZE = Told("own-epochs", ["resize"], "the loop is outside job.epochs()", "for epoch in job.epochs(count):")


def run(*told: Told, wrong: bool = False) -> Run:
    steps = {number: Step(indices=[number, 7 + wrong], rates=[[0.1]]) for number in range(9)}
    return Run(steps, Facts(loader=True, size=100, batch=8), ended=True, habits={each.code: each for each in told})


def judged(reference: Run, runs: list[Run], failed: str = "") -> dict[str, tuple[str, str]]:
    courses = [ShapeRun(shape, Path("/nowhere"), failed=failed) for shape in SHAPES]
    found = rows(Judge(reference, reference), list(zip(courses, runs, strict=True)), NOTHING, None)
    return {row.shape: (row.verdict, row.habit.code if row.habit else "") for row in found}


def test_a_shape_is_told_if_the_library_takes_away_a_freedom_that_it_needs() -> None:
    verdicts = judged(run(PASSES), [run(wrong=True) for _ in SHAPES])
    assert list(verdicts.values()) == [
        ("told", "two-passes"),
        ("told", "two-passes"),
        ("differs", "samples"),
        ("told", "two-passes"),
        ("differs", "samples"),
    ]
    # Told only in another shape, so it was not told in time here.
    verdicts = judged(run(), [run(PASSES, wrong=True), *(run(wrong=True) for _ in SHAPES[1:])])
    assert list(verdicts.values())[:2] == [("told", "two-passes"), ("differs", "samples")]
    # A shape that the job never gets may fail.
    assert judged(run(PASSES, RESIZE), [run() for _ in SHAPES], failed="exit code 1") == {
        shape.name: ("told", "own-epochs" if index in (2, 4) else "two-passes") for index, shape in enumerate(SHAPES)
    }
    assert judged(run(), [run() for _ in SHAPES], failed="exit code 1")["split"] == ("failed", "")
    assert [each.freedoms for each in habits([run(PASSES), run(PASSES, RESIZE)])] == [
        ["accumulate", "split"],
        ["resize"],
    ]


def test_a_suspicion_is_told_where_it_shows_and_otherwise_only_noted() -> None:
    copied = Told("forgotten-copy", ["accumulate", "split"], "a copy of the weights", "job.state(copy)")
    later = Told("own-next", ["resize"], "the loop takes batches by next()", "a for loop")
    runs = [run(wrong=shape.name == "accumulating") for shape in SHAPES]
    reference = run()
    reference.suspected = {each.code: each for each in (copied, later)}
    courses = [ShapeRun(shape, Path("/nowhere")) for shape in SHAPES]
    table = rows(Judge(reference, reference), list(zip(courses, runs, strict=True)), NOTHING, None)
    assert [row.verdict for row in table] == ["told", "same", "same", "same", "same"]
    assert (table[0].step, table[0].what) == (0, "samples"), "the row must show where it differs"
    assert [each.code for each in habits([reference], table)] == ["forgotten-copy"]
    assert doubts([reference], table) == [
        "so few steps do not show this habit, but a job would assume it: the loop takes batches by next() (own-next)"
    ]
    nothing = rows(Judge(reference, reference), [(course, run()) for course in courses], NOTHING, None)
    assert worst(nothing) == "same"
    assert len(doubts([reference], nothing)) == 2
    # A suspicion explains nothing if the job fails there or differs in something else.
    assert judged(run(), runs)["accumulating"] == ("differs", "samples")


def test_if_only_a_scheduler_differs_each_replica_has_its_own_metric() -> None:
    reference, apart = run(), run()
    for number, step in reference.steps.items():
        step.numbers = {"scheduler:0.best": 1.0, "scheduler:0.num_bad_epochs": 0.0}
        apart.steps[number].numbers = {
            "scheduler:0.best": 1.0 if number < 4 else 0.5,
            "scheduler:0.num_bad_epochs": 0.0,
        }
    verdicts = judged(reference, [apart for _ in SHAPES])
    assert verdicts["two replicas"] == verdicts["two replicas, accumulating"] == ("differs", "replicas-apart")
    assert verdicts["split"] == ("differs", "by-pass")
    # If something that it may follow differs too, the scheduler is not the cause.
    apart.steps[4].numbers["group 0.momentum"] = 0.3
    reference.steps[4].numbers["group 0.momentum"] = 0.9
    assert judged(reference, [apart for _ in SHAPES])["two replicas"] == ("differs", "by-pass")


def test_the_plainest_name_of_a_habit_replaces_weaker_ones_of_other_shapes() -> None:
    plain, weak, other = habit("state-in-pieces", "ema"), habit("not-kept", "ema"), habit("own-rate")
    assert join([plain, weak, None, other]) == [plain, plain, None, other]
    assert "(ema)" in plain.message
    apart = [habit("mixed"), habit("token-loss", "9")]
    assert join(apart) == apart


def test_all_shapes_differ_if_the_order_of_examples_in_a_batch_changes_the_training() -> None:
    """Differences from another order count as rounding, and they hide what a part of the batch changes."""
    judge = Judge(run(), run())
    judge.rounding.ordered = 1
    courses = [(ShapeRun(shape, Path("/nowhere")), run()) for shape in SHAPES]
    ordered = rows(judge, courses, NOTHING, True)
    assert {(row.verdict, row.what, row.habit.code) for row in ordered if row.habit} == {
        ("differs", "order of examples", "mixed")
    }
    assert len(ordered) == len(SHAPES)
    assert {row.verdict for row in rows(judge, courses, NOTHING, None)} == {"same"}, "random numbers may be the cause"


def test_a_run_with_fewer_steps_than_the_reference_failed() -> None:
    short = run()
    del short.steps[8]
    assert judged(run(), [short, *(run() for _ in SHAPES[1:])])["accumulating"] == ("failed", "")


def test_the_table_shows_reports_and_the_freedoms_that_gpq_does_not_use() -> None:
    courses = [ShapeRun(shape, Path("/nowhere")) for shape in SHAPES]
    found = rows(Judge(run(PASSES), run()), [(course, run()) for course in courses], NOTHING, None)
    assert worst(found) == "told"
    verdict = Verdict(
        "/a/tr\x1bain.py",
        ["--x"],
        "d",
        {},
        "2",
        "0",
        "told",
        8,
        32,
        found,
        habits([run(PASSES)]),
        ["a note"],
        0.0,
        3.2,
        "now",
    )
    text = "\n".join(lines(verdict, 200))
    assert (
        "accumulating / split / two replicas, accumulating: gpq says: the loop clears gradients between two passes"
        in text
    )
    assert "until then gpq does not use: accumulate (a step in several micro-batches), split (a step" in text
    assert "because it avoids the shapes above. (3 s)" in text
    assert "\x1b" not in text
    assert all(len(line) <= 60 for line in lines(verdict, 60)[8:])


def test_malformed_records_are_left_out(tmp_path: Path) -> None:
    step = wire.CheckStep(1, [3, 1], False, [["loss", 1.5, 2]], [[0.1]], {"w": [1.0, 0.0, 2.0]}, {"n": None})
    good = json.dumps(step._asdict())
    other = json.dumps({**step._asdict(), "indices": [2], "tensors": {}, "metrics": [["loss", 2.5, 1]]})
    (tmp_path / "1.0.jsonl").write_bytes(
        b'{"facts":{"loader":true,"batch":4}}\n' + good.encode() + b'\n{"step":"x"}\n[]\n\xff\n{"step":2,"tens'
    )
    (tmp_path / "1.1.jsonl").write_text(other + "\n")
    (tmp_path / "1").mkdir()
    told = {"v": 1, "kind": "habit", "code": "c", "freedoms": ["split"]}
    whole = {**told, "message": "m", "cure": "c", "more": 1}
    (tmp_path / "1" / wire.REPORT).write_text(
        f'{json.dumps(told)}\n{json.dumps(whole)}\n{{"kind":"notice","message":7}}\nx'
    )
    found = read(tmp_path, 2)
    assert (found.last, found.ended, list(found.habits), found.notices) == (1, False, ["c"], ["7"])
    assert found.facts == Facts(loader=True, batch=4)
    assert found.steps[1].indices == [1, 2, 3]
    assert found.steps[1].metrics == {"loss": [(1.5, 2, 0), (2.5, 1, 1)]}
    assert found.steps[1].tensors == {"w": [1.0, 0.0, 2.0]}
    assert REFERENCE.order(REFERENCE.attempts[0], "/f", 8, 3).epoch_steps == 4
