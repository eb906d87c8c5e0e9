"""The words of completion: which jobs a command offers, in which order, and what a name stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpq.control.completion import MOST_WORDS, some, words
from gpq.control.reader import Reader
from gpq.core.model.jobs import DesiredState, Job, JobState, Level
from gpq.rpc.requests import Complete
from tests.support.builders import job, node, on, running, snapshot
from tests.support.memory_store import MemoryStore


def named(one: Job, name: str) -> Job:
    return replace(one, spec=one.spec.having(name=name))


RIGID = named(running(3, on("a", 0), declared=False), "train")  # cannot stop without losing its work
MOVABLE = replace(RIGID, id=5, spec=RIGID.spec.having(name="big", level=Level.SIGNAL))  # type: ignore[arg-type]
HERE = (
    RIGID,
    MOVABLE,
    named(job(6), "train"),
    named(job(7, state=JobState.HELD, wish=DesiredState.HOLD), "kept"),
    named(job(9, wish=DesiredState.CANCEL), "going"),
)
OVER = (
    named(job(2, state=JobState.FAILED, ended_at=20.0), "old"),
    named(job(4, state=JobState.COMPLETED, ended_at=30.0), "old"),
    named(job(8, state=JobState.FAILED, ended_at=40.0), "train"),
)


def offered(command: str, prefix: str = "", given: Sequence[str] = ()) -> list[tuple[str, str]]:
    here = snapshot(node("a"), *HERE)
    past = MemoryStore()
    past.commit([], here, ended=OVER)
    return words(Reader(here, None, 50.0), past, Complete("jobs", prefix, command, list(given))).words


def ids(command: str, prefix: str = "", given: Sequence[str] = ()) -> list[int]:
    return [int(word) for word, _ in offered(command, prefix, given) if word.isdigit()]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("cancel", [7, 6, 5, 3]),
        ("edit", [7, 6, 5, 3]),
        ("hold", [6, 5]),
        ("release", [7]),
        ("requeue", [8, 7, 5, 4, 2]),  # ended jobs are submitted again
        ("wait", [9, 7, 6, 5, 3]),
        ("submit", [9, 7, 6, 5, 3]),
        ("history", [8, 4, 2]),
        ("logs", [9, 8, 7, 6, 5, 4, 3, 2]),
        ("status", [9, 8, 7, 6, 5, 4, 3, 2]),
        ("", [9, 8, 7, 6, 5, 4, 3, 2]),
    ],
)
def test_a_command_is_offered_the_jobs_that_it_can_act_on_newest_first(command: str, found: list[int]) -> None:
    assert ids(command) == found


def test_ids_come_before_names_each_with_its_own_description() -> None:
    assert offered("cancel") == [
        ("7", "kept held"),
        ("6", "train pending"),
        ("5", "big running"),
        ("3", "train running"),
        ("kept", "7 held"),
        ("train", "2 jobs: 3, 6"),
        ("big", "5 running"),
    ]


def test_a_name_says_which_jobs_it_stands_for() -> None:
    assert offered("hold", "tr") == [("train", "6 pending, 2 jobs have this name: 3, 6")]
    assert offered("logs", "tr") == [("train", "6 pending, 3 jobs have this name: 3, 6, 8")]
    assert offered("logs", "o") == [("old", "4 completed, 2 jobs have this name: 2, 4")]
    assert offered("history", "o") == [("old", "2 jobs: 2, 4")]
    assert offered("requeue", "tr") == []  # it means those that have not ended


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["7"], [6, 5, 3]),
        (["5-7"], [3]),
        (["train"], [7, 5]),
        (["3", "5"], [7, 6]),
        (["all"], []),
        (["@", "@~3", "6_0", "?"], [7, 5, 3]),  # @~3 is 6, and the others name nothing here that could be cancelled
    ],
)
def test_what_is_on_the_line_is_not_offered_again(given: list[str], left: list[int]) -> None:
    assert ids("cancel", given=given) == left
    assert "train" not in dict(offered("status", given=["train"]))


def test_a_name_that_means_something_else_is_not_offered() -> None:
    here = snapshot(node("a"), named(job(1), "all"), named(job(2), "1"), named(job(3), "1-2"))
    said = words(Reader(here, None, 50.0), MemoryStore(), Complete("jobs", command="cancel")).words
    assert [word for word, _ in said] == ["3", "2", "1"]


def test_of_many_jobs_with_one_name_a_few_are_listed() -> None:
    here = snapshot(node("a"), *(named(job(number), "train") for number in range(1, 21)))
    said = words(Reader(here, None, 50.0), MemoryStore(), Complete("jobs", "train", "cancel")).words
    assert said == [("train", "20 jobs: 1, 2, 3, 4, 5 to 20")]


def test_of_thousands_of_words_some_with_the_common_prefix_are_returned() -> None:
    words = [f"train-{number}" for number in range(3000)] + ["test"]
    told = some(words)
    assert len(told) <= MOST_WORDS + 2
    assert (min(told), max(told)) == (min(words), max(words))
    assert some(words[:10]) == words[:10]
