from __future__ import annotations

from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.tables import Column, read
from tests.support.measured import write

COLUMNS = (Column("name", text=True), Column("time", least=0.0), Column("gpus", whole=True, least=1.0))


def test_columns_are_found_by_name_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", ("time,gpus,other,name", "1.5,2,?,a", "", " 2e1 ,3.0,!, b "))
    table = read(path, COLUMNS)
    assert table.numbers["time"].tolist() == [1.5, 20.0]
    assert table.numbers["gpus"].tolist() == [2.0, 3.0]
    assert table.texts == {"name": ["a", "b"]}
    assert table.rows == (2, 4)
    assert table.wrong(1, "bad").message == "w.csv row 4: bad"


def test_a_column_may_have_a_default(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", ("name", "a"))
    assert read(path, (Column("kind", text=True, default="x"),)).texts == {"kind": ["x"]}


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_bytes(b"\xef\xbb\xbfname\r\na\r\n")
    assert read(tmp_path / "w.csv", (Column("name", text=True),)).texts == {"name": ["a"]}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,-3,1", "w.csv row 3: time is -3, must be >= 0"),
        ("a,x,1", "w.csv row 3: time is 'x', must be a number"),
        ("a,,1", "w.csv row 3: time is '', must be a number"),
        ("a,nan,1", "w.csv row 3: time is 'nan', must be a number"),
        ("a,inf,1", "w.csv row 3: time is 'inf', must be a number"),
        ("a,1e999,1", "w.csv row 3: time is '1e999', must be a number"),
        ("a,1_0,1", "w.csv row 3: time is '1_0', must be a number"),
        ("a,1,1.5", "w.csv row 3: gpus is 1.5, must be a whole number"),
        ("a,1,0", "w.csv row 3: gpus is 0, must be >= 1"),
        (",1,1", "w.csv row 3: name is empty"),
        ("a,1", "w.csv row 3: expected 3 cells, found 2"),
        ("a,1,1,1", "w.csv row 3: expected 3 cells, found 4"),
        ('"a,1,1', "w.csv is not a CSV file: unexpected end of data"),
    ],
)
def test_a_mistake_is_reported_with_its_row(tmp_path: Path, row: str, problem: str) -> None:
    path = write(tmp_path / "w.csv", ("name,time,gpus", "z,0,1", row))
    with pytest.raises(UsageError) as caught:
        read(path, COLUMNS)
    assert caught.value.message == problem
    assert str(path) in caught.value.hint


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "w.csv has no rows"),
        (b"\n\n", "w.csv has no rows"),
        (b"name,time,gpus\n", "w.csv has no rows"),
        (b"name,when\na,1\n", "w.csv has no column time, gpus"),
        (b"name,time,gpus,time\na,1,1,2\n", "w.csv row 1: column time appears twice"),
        (b"name,time,gpus\n\xff,1,1\n", "w.csv is not UTF-8 text"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "w.csv").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "w.csv", COLUMNS)
    assert caught.value.message == problem


def test_a_value_may_have_to_be_above_its_minimum(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", ("step", "0"))
    with pytest.raises(UsageError, match=r"row 2: step is 0, must be > 0"):
        read(path, (Column("step", least=0.0, above=True),))


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        read(tmp_path / "none.csv", COLUMNS)
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read(tmp_path, COLUMNS)
