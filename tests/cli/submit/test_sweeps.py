"""`--array`, `--sweep` and `--sweep-file`: which jobs they make, and what gpq refuses with which hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.options.sweeps import array_of, plain_indices, unused_lines
from gpq.rpc.requests import ArrayMessage, SpecMessage


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
def test_the_indices_and_limit_of_an_array_are_read(text: str, indices: list[int], limit: int) -> None:
    assert array_of(text, [], "") == ArrayMessage(indices, limit=limit)


def test_a_sweep_is_a_grid_whose_last_value_varies_fastest() -> None:
    found = array_of("%4", ["lr=1e-3,1e-2", "seed=-1..1"], "")
    assert found is not None
    assert found.limit == 4
    assert found.indices == list(range(6))
    assert [(one["lr"], one["seed"]) for one in found.params] == [
        (lr, seed) for lr in ("1e-3", "1e-2") for seed in ("-1", "0", "1")
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[64,64],[128,128]", ["[64,64]", "[128,128]"]),
        ("(0.9,0.999), (0.9,0.95)", ["(0.9,0.999)", "(0.9,0.95)"]),
        ('{"a":[1,2]},{"b":"]"}', ['{"a":[1,2]}', '{"b":"]"}']),
        ('"a, b",\'"\',"it\'s"', ["a, b", '"', "it's"]),
        ("--x='a,b',--y", ["--x='a,b'", "--y"]),
        (' "",x ', ["", "x"]),
        ("1e-3, 1e-2 ,a b", ["1e-3", "1e-2", "a b"]),
        ("001..003", ["001", "002", "003"]),
        ("08..11,7", ["08", "09", "10", "11", "7"]),
        ("9..11", ["9", "10", "11"]),
        ("-1..1", ["-1", "0", "1"]),
        ('"1..3",2', ["1..3", "2"]),
        ("../a,b/../c,..", ["../a", "b/../c", ".."]),
    ],
)
def test_commas_separate_values_except_in_brackets_and_quotes(text: str, values: list[str]) -> None:
    found = array_of("", [f"x={text}"], "")
    assert found is not None
    assert [one["x"] for one in found.params] == values


def test_a_sweep_file_has_one_job_per_line_and_combines_with_a_grid(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text('\ufefflr, note\n0.1,"a, b"\n\n0.2, c\n0.3, "d, e"\n')
    found = array_of("", ["seed=1,2"], str(tmp_path / "s.csv"))
    assert found is not None
    assert found.params == [
        {"lr": "0.1", "note": "a, b", "seed": "1"},
        {"lr": "0.1", "note": "a, b", "seed": "2"},
        {"lr": "0.2", "note": "c", "seed": "1"},
        {"lr": "0.2", "note": "c", "seed": "2"},
        {"lr": "0.3", "note": "d, e", "seed": "1"},
        {"lr": "0.3", "note": "d, e", "seed": "2"},
    ]


def test_without_these_options_there_is_no_array() -> None:
    assert array_of("", [], "") is None


@pytest.mark.parametrize(
    ("array", "sweeps", "told"),
    [
        ("x", [], "expected "),
        ("%4", [], "expected "),
        ("1-", [], "expected "),
        ("5-3", [], "range end is below its start"),
        ("0-10000", [], "more than 10000"),
        ("0-9%0", [], "a number of jobs after %"),
        ("0-9%x", [], "a number of jobs after %"),
        ("0-9%", [], "a number of jobs after %"),
        ("0-9:0", [], "expected "),
        ("0-9", ["a=1"], "cannot be combined with --sweep"),
        ("", ["a"], "has no values"),
        ("", ["a="], "has no values"),
        ("", ["=1"], "invalid name"),
        ("", ["a-b=1"], "invalid name"),
        ("", ["index=1"], "invalid name"),
        ("", ["a=1", "a=2"], "swept twice"),
        ("", ["a=1,1"], "a value twice"),
        ("", ["a=3..1"], "range end is below its start"),
        ("", ["a=0..10000"], "more than 10000"),
        ("", ["a=0..999", "b=0..99"], "100000 jobs"),
        ("", ["a=0.1..0.5"], "0.1..0.5 is not a range of whole numbers"),
        ("", ["a={0..9}"], "is not a range"),
        ("", ["a=1..9..2"], "is not a range"),
        ("", ["a=1 .. 3"], "is not a range"),
        ("", ["a=[0..3]"], "is not a range"),
        ("", ["a=..5"], "is not a range"),
        ("", ["a=8..012"], "different width"),
        ("", ["a=003..001"], "range end is below its start"),
        ("", ["a=[1,2"], r"a \] is missing"),
        ("", ["a=1)"], r"\) has no opening bracket"),
        ("", ["a=[1)"], r"\) has no opening bracket"),
        ("", ["a=don't,do"], "a ' is not closed"),
        ("", ['a="x"y'], "y follows a value in quotes"),
        ("", ["a=1,,2"], "a value is empty"),
        ("", ["a=1, "], "a value is empty"),
    ],
)
def test_an_invalid_array_or_sweep_is_refused(array: str, sweeps: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        array_of(array, sweeps, "")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("", "has no jobs"),
        ("a,b\n", "has no jobs"),
        ("a,a\n1,2\n", "two columns of the same name"),
        ("a b\n1\n", "invalid name"),
        ("a,b\n1,2\n1\n", "line 3: 1 values for 2 names"),
        ('a\n"1\n', "is not a CSV file"),
    ],
)
def test_an_invalid_sweep_file_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "s.csv").write_text(text)
    with pytest.raises(UsageError, match=told):
        array_of("", [], str(tmp_path / "s.csv"))


def test_a_sweep_name_that_no_argument_uses_gets_a_note() -> None:
    def told(*argv: str, done_file: str = "", **env: str) -> list[str]:
        spec = SpecMessage(list(argv), "/", "script", env=env, done_file=done_file)
        return unused_lines(ArrayMessage([0], [{"lr": "1", "wd": "2"}]), spec)

    assert told("t.py", "--lr={lr}", OUT="{wd}") == []
    assert told("t.py", "{lr}") == ["no argument contains {wd}: the job gets it only as the variable GPQ_SWEEP_wd"]
    of_the_shell = (
        "gpq leaves ${wd} to the shell and fills in only {wd}: the job also gets it as the variable GPQ_SWEEP_wd"
    )
    assert told("sh", "-c", "t --lr {lr} --wd ${wd}") == [of_the_shell]
    assert told("sh", "-c", "lr={lr}; wd={wd}; t --wd ${wd}") == []
    assert told("sh", "-c", "t {lr} {wd}", done_file="out/${wd}") == [of_the_shell], "no shell reads this path"


def test_a_misused_index_gets_a_note() -> None:
    def told(text: str, *argv: str) -> list[str]:
        spec = SpecMessage(list(argv), "/", "black-box")
        return [*unused_lines(ArrayMessage([1, 2]), spec), *plain_indices(text, spec)]

    assert "GPQ_ARRAY_INDEX" in told("1-2", "sh", "-c", "echo ${index}")[0]
    assert "--sweep i=001..010 keeps them" in told("001-002", "echo", "{index}")[0]
    assert told("10-20", "echo", "{index}") == told("001-002", "echo") == []
