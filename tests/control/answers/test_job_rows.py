"""The rows of a screen: all jobs with GPUs, elements that wait for the same thing as one row, and no more others than
asked."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gpq.control.reader import Reader
from gpq.control.readings import screen
from gpq.core.model.jobs import Job, Seat
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.rpc.job_answers import JobList
from gpq.views.queue import lines
from tests.support.builders import black_box, node, on, running, snapshot


def waiting(number: int, array: int = 0, index: int = 0) -> Job:
    seat = Seat(JobId(array), index, 100) if array else None
    return Job(JobId(number), black_box(name="train", seat=seat), 0.0)


def rows(state: Snapshot, most: int) -> tuple[list[tuple[int, int]], int]:
    """(first id, number of jobs) of each row, and how many jobs have no row."""
    shown, hidden = screen(Reader(state, None, 1.0), [state.jobs[name] for name in sorted(state.jobs)], most)
    assert sum(row.alike for row in shown) + hidden == len(state.jobs)
    return [(row.id, row.alike) for row in shown], hidden


def test_jobs_with_gpus_are_shown_however_many_wait() -> None:
    busy = running(9, on("a", 0))
    state = snapshot(node("a"), *(waiting(number) for number in range(1, 9)), busy)
    assert rows(state, 3) == ([(1, 1), (2, 1), (3, 1), (9, 1)], 5)


def test_elements_that_wait_for_the_same_thing_are_one_row() -> None:
    array = [waiting(11 + index, 10, index) for index in range(50)]
    state = snapshot(node("a"), waiting(1), *array, waiting(99))
    assert rows(state, 10) == ([(1, 1), (11, 50), (99, 1)], 0)
    assert rows(state, 1) == ([(1, 1)], 51)
    others = [replace(one, unmet="job 3 failed") if one.id == 30 else one for one in array]
    state = snapshot(node("a"), *others)
    assert rows(state, 10) == ([(11, 19), (30, 1), (31, 30)], 0)


def test_the_table_says_what_a_row_stands_for_and_how_many_more_wait() -> None:
    array = [waiting(11 + index, 10, index) for index in range(50)]
    state = snapshot(node("a"), *array, waiting(98), waiting(99))
    shown, hidden = screen(Reader(state, None, 1.0), [state.jobs[name] for name in sorted(state.jobs)], 1)
    drawn = lines(msgspec.to_builtins(JobList(shown, total=52, hidden_waiting=hidden)), fold=True)
    assert "11-60" in drawn[1]
    assert "train[0-49]" in drawn[1]
    assert "50 jobs: " in drawn[1]
    assert drawn[2] == "and 2 more pending or held: gpq status state=pending,held"
