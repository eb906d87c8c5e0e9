"""`--array`, `--sweep` and `--sweep-file`: which jobs they are, and what is refused with what hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.cli.sweeps import array_of, unused
from gpq.errors import UsageError
from gpq.rpc.messages import ArrayMessage, SpecMessage


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("5", [5], 0),
        ("1,3,8-20:4", [1, 3, 8, 12, 16, 20], 0),
        ("3,1-3%2", [1, 2, 3], 2),
        ("0-9999", list(range(10_000)), 0),
    ],
)
def test_indices_and_limit_of_an_array(text: str, indices: list[int], limit: int) -> None:
    assert array_of(text, [], "") == ArrayMessage(indices, limit=limit)


def test_a_sweep_is_the_grid_of_its_values_the_last_varying_fastest() -> None:
    found = array_of("%4", ["lr=1e-3,1e-2", "seed=-1..1"], "")
    assert found is not None
    assert found.limit == 4
    assert found.indices == list(range(6))
    assert [(one["lr"], one["seed"]) for one in found.params] == [
        (lr, seed) for lr in ("1e-3", "1e-2") for seed in ("-1", "0", "1")
    ]


def test_a_file_has_a_job_a_line_and_combines_with_a_grid(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text('\ufefflr, note\n0.1,"a, b"\n\n0.2, c\n')
    found = array_of("", ["seed=1,2"], str(tmp_path / "s.csv"))
    assert found is not None
    assert found.params == [
        {"lr": "0.1", "note": "a, b", "seed": "1"},
        {"lr": "0.1", "note": "a, b", "seed": "2"},
        {"lr": "0.2", "note": "c", "seed": "1"},
        {"lr": "0.2", "note": "c", "seed": "2"},
    ]


def test_none_of_them_is_no_array() -> None:
    assert array_of("", [], "") is None


@pytest.mark.parametrize(
    ("array", "sweeps", "told"),
    [
        ("x", [], "names no jobs"),
        ("%4", [], "names no jobs"),
        ("1-", [], "names no jobs"),
        ("5-3", [], "ends below"),
        ("0-10000", [], "more than 10000"),
        ("0-9%0", [], "after % goes"),
        ("0-9%x", [], "after % goes"),
        ("0-9%", [], "after % goes"),
        ("0-9:0", [], "names no jobs"),
        ("0-9", ["a=1"], "beside a sweep"),
        ("", ["a"], "has no values"),
        ("", ["a="], "has no values"),
        ("", ["=1"], "cannot be swept"),
        ("", ["a-b=1"], "cannot be swept"),
        ("", ["index=1"], "cannot be swept"),
        ("", ["a=1", "a=2"], "swept twice"),
        ("", ["a=1,1"], "a value twice"),
        ("", ["a=3..1"], "ends below"),
        ("", ["a=0..10000"], "more than 10000"),
        ("", ["a=0..999", "b=0..99"], "100000 jobs"),
    ],
)
def test_what_is_no_array_or_sweep_is_refused(array: str, sweeps: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        array_of(array, sweeps, "")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("", "has no jobs"),
        ("a,b\n", "has no jobs"),
        ("a,a\n1,2\n", "a column twice"),
        ("a b\n1\n", "cannot be swept"),
        ("a,b\n1,2\n1\n", "line 3: 1 values for 2 names"),
        ('a\n"1\n', "no CSV"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "s.csv").write_text(text)
    with pytest.raises(UsageError, match=told):
        array_of("", [], str(tmp_path / "s.csv"))


def test_a_name_that_is_in_no_argument_is_noted() -> None:
    def told(*argv: str, **env: str) -> list[str]:
        return unused(ArrayMessage([0], [{"lr": "1", "wd": "2"}]), SpecMessage(list(argv), "/", "script", env=env))

    assert told("t.py", "--lr={lr}", OUT="{wd}") == []
    assert told("t.py", "{lr}") == ["{wd} is in no argument: the job finds it in its environment, as GPQ_SWEEP_wd"]
