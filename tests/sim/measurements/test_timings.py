from __future__ import annotations

from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.timings import NotMeasured, StepTimes, normalise
from tests.support.measured import PLACEMENTS, SCALABILITY, write


def measured(
    folder: Path, placements: tuple[str, ...] = PLACEMENTS, scalability: tuple[str, ...] = SCALABILITY
) -> StepTimes:
    return StepTimes(
        "toy", write(folder / "placements.csv", placements), write(folder / "scalability.csv", scalability)
    )


def test_a_rotation_is_the_same_placement_and_a_reflection_is_not() -> None:
    assert normalise((2, 1, 1)) == normalise((0, 1, 2, 1)) == (1, 1, 2)
    assert normalise((3, 2, 1)) == (1, 3, 2) != normalise((1, 2, 3))
    with pytest.raises(ValueError, match="no placement"):
        normalise((0, 0))


def test_a_measured_placement_is_linear_between_its_own_batches(tmp_path: Path) -> None:
    times = measured(tmp_path)
    assert times.times((1,), 10) == (1.0, 0.0)
    assert times.times((1,), 40) == (3.5, 0.0)
    assert times.times((1,), 15) == pytest.approx((1.25, 0.0))
    assert times.times((1,), 25) == pytest.approx((2.0, 0.0))
    assert times.times((2, 0, 1, 1), 12) == pytest.approx((4.2, 3.1))
    assert times.times((2, 1), 10) == times.times((1, 2), 10) == (2.4, 1.4)
    assert (times.smallest, times.largest) == (10, 40)


def test_an_unmeasured_placement_lies_between_means_and_larger_placements(tmp_path: Path) -> None:
    times = measured(tmp_path)
    assert times.times((2,) * 16, 10) == pytest.approx((8.5, 7.5))  # a row of scalability.csv
    assert times.times((1,) * 8 + (2,) * 8, 15) == pytest.approx((8.75, 7.5))  # halfway between four
    # Three GPUs of two servers: halfway between two (11) and four (the mean of 13 and 22).
    alone = tuple(row for row in PLACEMENTS if not row.startswith(("12,", "112,")))
    less = measured(tmp_path / "less", (*alone, "14,10,9.0,8.0", "14,20,9.0,8.0"))
    assert less.times((1, 2), 10) == pytest.approx(((2.0 + 2.4) / 2, (1.0 + 1.4) / 2))


def test_more_servers_than_measured_count_as_the_most_measured(tmp_path: Path) -> None:
    times = measured(tmp_path)
    assert times.times((1,) * 24, 10) == times.times((1,) * 8 + (2,) * 8, 10)


@pytest.mark.parametrize(
    ("counts", "atomic", "problem"),
    [
        ((2,), 21, "toy was measured on 2 GPUs of 1 node at 10 to 20 examples per GPU, not at 21"),
        ((1,), 9.5, "toy was measured on 1 GPU of 1 node at 10 to 40 examples per GPU, not at 9.5"),
        ((3,), 10, "toy was not measured on 3 GPUs of 1 node at 10 examples per GPU"),
        ((8, 8), 10, "toy was not measured on 16 GPUs of 2 nodes (8+8) at 10 examples per GPU"),
        ((12,), 10, "toy was not measured on 12 GPUs of 1 node at 10 examples per GPU"),  # not the placement "12"
        ((2,) * 16, 30, "toy was not measured on 32 GPUs of 16 nodes"),
    ],
)
def test_unmeasured_configurations_are_refused(
    tmp_path: Path, counts: tuple[int, ...], atomic: float, problem: str
) -> None:
    with pytest.raises(NotMeasured) as caught:
        measured(tmp_path).times(counts, atomic)
    assert caught.value.message.startswith(problem)
    assert "32 GPUs on 16 nodes" in caught.value.hint
    assert caught.value.code == 5


def test_the_range_of_valid_batch_sizes(tmp_path: Path) -> None:
    times = measured(tmp_path)
    assert times.measured((1,)) == (10, 40)
    assert times.measured((1, 1)) == (10, 20)
    assert times.measured((2,) * 16) == (10, 20)
    with pytest.raises(NotMeasured, match="not measured on 16 GPUs"):
        times.measured((8, 8))


def test_measurements_of_one_server_say_nothing_about_two(tmp_path: Path) -> None:
    one = ("placement,local_bsz,step_time,sync_time", "1,10,1,0", "1,20,2,0", "2,10,1,0", "2,20,2,0")
    same = ("num_nodes,num_replicas,local_bsz,step_time,sync_time", "1,1,10,1,0", "1,2,20,2,0")
    times = measured(tmp_path, one, same)
    assert times.times((2,), 15) == (1.5, 0.0)
    with pytest.raises(NotMeasured, match="2 GPUs of 2 nodes"):
        times.times((1, 1), 10)
    few = measured(tmp_path / "few", one[:2], same[:2])  # too few to span a range
    with pytest.raises(NotMeasured, match="2 GPUs of 2 nodes"):
        few.measured((1, 1))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("x1,10,1,0", r"placement is 'x1', must be digits from 1 to 9"),
        ("10,10,1,0", r"placement is '10', must be digits from 1 to 9"),
        ("2,30,1,1.5", r"sync_time is 1.5, more than the whole step_time, 1"),
        ("21,10,1,0", r"placement 21 with local_bsz 10 appears twice"),
        ("2,30,0,0", r"step_time is 0, must be > 0"),
        ("2,0,1,0", r"local_bsz is 0, must be >= 1"),
    ],
)
def test_invalid_measurements_are_refused(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(UsageError, match=rf"placements.csv row 17: {problem}"):
        measured(tmp_path, (*PLACEMENTS, row))


def test_more_servers_than_replicas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"scalability.csv row 6: num_nodes is 4, more than num_replicas, 2"):
        measured(tmp_path, scalability=(*SCALABILITY, "4,2,10,1,0"))
