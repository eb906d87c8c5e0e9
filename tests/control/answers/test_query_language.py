"""Queries of `gpq status`: what a condition means, the order, and what is refused."""

from __future__ import annotations

import pytest

from gpq.control.query_language import parse
from gpq.errors import UsageError
from gpq.rpc.job_answers import JobView
from gpq.rpc.job_columns import COLUMNS
from tests.cli.served import job

ROWS = [
    job(1, tags=["cifar10", "big"], goodput=10.0, age_seconds=3600.0, user="ana"),
    job(2, tags=["imagenet"], goodput=30.0, age_seconds=7200.0, user="Ben", progress=0.9),
    job(3, "pending", age_seconds=60.0, user="ana", priority=5),
    job(4, "failed", exit_status=3, age_seconds=99.0, user="eva", name="a b"),
]


def ids(*words: str, rows: list[JobView] = ROWS) -> list[int]:
    return [row.id for row in parse(words).answer(rows)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("user=ana", [1, 3]),
        ("user=ana,ben", [1, 2, 3]),
        ("user!=ana", [2, 4]),
        ("user=ana state=running", [1]),
        ("tag~cifar", [1]),
        ("tag=cifar", []),
        ("tag=big", [1]),
        ("tag!~cifar", [2, 3, 4]),
        ("tag!=big", [2, 3, 4]),
        ("name~TRAIN", [1, 2, 3]),
        ("'name=a b'", [4]),
        ("server=a", [1, 2]),
        ("state=pending,failed", [3, 4]),
        ("age>1h", [2]),
        ("age>=1h", [1, 2]),
        ("age<2m", [3, 4]),
        ("goodput>10", [2]),
        ("goodput<=10", [1]),
        ("goodput!=10", [2, 3, 4]),
        ("exit=3", [4]),
        ("exit!=3", [1, 2, 3]),
        ("gpus=0", [3, 4]),
        ("batch<1000", [1, 2]),  # the others train with none
        ("sort=batch", [1, 2, 3, 4]),
        ("progress>50%", [2]),
        ("progress<0.5", [1]),
        ("priority>0", [3]),
        ("id=1,3", [1, 3]),
        ("array=1", []),
        ("sort=-goodput", [2, 1, 3, 4]),
        ("sort=goodput", [1, 2, 3, 4]),
        ("sort=user,-id", [3, 1, 2, 4]),
        ("sort=-age limit=2", [2, 1]),
        ("state=running sort=-submitted limit=1", [1]),
    ],
)
def test_all_conditions_must_hold(query: str, found: list[int]) -> None:
    assert ids(query) == found
    if "'" not in query:
        assert ids(*query.split(" ")) == found


@pytest.mark.parametrize(
    ("query", "told", "hint"),
    [
        ("usr=ana", "jobs have no `usr`", "did you mean user"),
        ("zzz=1", "jobs have no `zzz`", "jobs have id, name"),
        ("sort=-godput", "jobs have no `godput`", "did you mean goodput"),
        ("state=runing", "unknown state `runing`", "use one of pending"),
        ("user>a", "user is text", "user~a"),
        ("goodput~1", "goodput is a number", "goodput=1"),
        ("goodput>much", "cannot be compared with", "goodput>1"),
        ("age>2", "cannot be compared", "age>2h"),
        ("gpus>2h", "cannot be compared", "gpus>1"),
        ("limit=0", "not a number of jobs", "limit=10"),
        ("limit>3", "jobs have no `limit`", ""),
        ("user=", "has no value", "e.g."),
        ("=ana", "is not a condition", "e.g."),
        ("user='ana", "a quote has no end", "e.g."),
    ],
)
def test_an_invalid_query_is_refused_with_a_hint(query: str, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([query])
    assert told in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("field", COLUMNS)
def test_jobs_can_be_sorted_by_every_field(field: str) -> None:
    assert sorted(ids(f"sort=-{field}")) == [1, 2, 3, 4]
