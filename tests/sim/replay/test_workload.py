from __future__ import annotations

from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.sources import Arrival, check_workload, read_workload
from gpq.lab.measurements.trace import Traces
from tests.support.measured import application, write

HEADER = "name,time,application,num_replicas,batch_size"


def test_arrivals_are_sorted_by_time_and_then_by_row(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", (HEADER, "b,20.5,toy,2,40", "z,3,toy,1,20", "a,3,toy,1,20"))
    arrivals = read_workload(path)
    assert [arrival.name for arrival in arrivals] == ["z", "a", "b"]
    assert arrivals[2] == Arrival("b", 20.5, "toy", 2, 40, "adaptive")
    assert [arrival.row for arrival in arrivals] == [3, 4, 2]


def test_a_category_is_optional_and_one_of_three(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", (f"{HEADER},category", "a,0,toy,1,20,rigid", "b,0,toy,1,20,scale-gpus"))
    assert [arrival.category for arrival in read_workload(path)] == ["rigid", "scale-gpus"]
    write(path, (f"{HEADER},category", "a,0,toy,1,20,elastic"))
    with pytest.raises(UsageError, match="row 2: category is elastic, must be one of adaptive, scale-gpus, rigid"):
        read_workload(path)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("b,-3,toy,1,20", "time is -3, must be >= 0"),
        ("b,nan,toy,1,20", "time is 'nan', must be a number"),
        ("b,0,toy,0,20", "num_replicas is 0, must be >= 1"),
        ("b,0,toy,1.5,20", "num_replicas is 1.5, must be a whole number"),
        ("b,0,toy,1,0", "batch_size is 0, must be >= 1"),
        ("b,0,,1,20", "application is empty"),
        ("a,9,toy,1,20", "the name a is already used in row 2"),
    ],
)
def test_rows_that_are_not_valid_jobs_are_refused(tmp_path: Path, row: str, problem: str) -> None:
    path = write(tmp_path / "w.csv", (HEADER, "a,0,toy,1,20", row))
    with pytest.raises(UsageError) as caught:
        read_workload(path)
    assert caught.value.message == f"w.csv row 3: {problem}"


def test_an_empty_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"w\.csv has no rows"):
        read_workload(write(tmp_path / "w.csv", (HEADER,)))


def test_unmeasured_applications_cannot_be_simulated(tmp_path: Path) -> None:
    application(tmp_path / "traces")
    traces = Traces(tmp_path / "traces")
    path = write(tmp_path / "w.csv", (HEADER, "a,9,toy,1,20", "b,8,toy,64,60"))
    check_workload(read_workload(path), traces, path)
    write(path, (HEADER, "a,9,toy,1,20", "b,8,gpt,1,20", "c,0,gpt,1,20"))
    with pytest.raises(UsageError, match=r"^w\.csv row 3: there are no measurements of application gpt$") as caught:
        check_workload(read_workload(path), traces, path)
    assert caught.value.hint.endswith("has toy")
    for batch in (19, 61):
        write(path, (HEADER, f"a,9,toy,1,{batch}"))
        with pytest.raises(UsageError, match=rf"row 2: batch_size is {batch}, toy was measured from 20 to 60"):
            check_workload(read_workload(path), traces, path)
