"""Attempts on servers that the database does not know: their own job waits for them, the user sees them, nobody else is
affected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.cli.doctor.server_lines import unknown_attempts
from gpq.control.reader import Reader
from gpq.core.model.actions import Launch
from gpq.core.model.nodes import Orphan
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import decide
from gpq.policies.registry import POLICIES, policy
from gpq.rpc.node_answers import NodeList
from gpq.views.nodes import lines
from tests.support.builders import black_box, job, node, snapshot
from tests.support.explanations import explain

A = NodeId("a")
HERE = Orphan(JobId(1), 2, since=40.0, pid=77, folder="/spool/attempts/1.2")


def restored(*strangers: Orphan) -> Snapshot:
    one = replace(job(1, spec_=black_box()), attempt=1, lost_attempts=(2, 16))
    return snapshot(one, job(2, spec_=black_box()), replace(node("a", 2), strangers=strangers), node("b", 2), now=100.0)


def launched(here: Snapshot, name: str = "goodput") -> list[tuple[int, int]]:
    actions = decide(here, (), policy(name), allocate=True).actions
    return sorted((each.job, each.attempt) for each in actions if isinstance(each, Launch))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_that_runs_unknown_to_the_database_is_not_started_twice(name: str) -> None:
    assert launched(restored(HERE), name) == [(2, 1)]
    assert launched(restored(), name) == [(1, 17), (2, 1)]
    assert launched(restored(replace(HERE, job=JobId(9))), name) == [(1, 17), (2, 1)]


def test_why_says_where_it_runs_and_how_to_end_it() -> None:
    here = restored(HERE)
    told = explain(here, None, here.jobs[JobId(1)])
    assert told.headline == "server a runs its attempt 1.2, which this daemon's database does not know"
    assert "`kill 77` on a ends that attempt" in told.remedies[0]


def test_status_nodes_and_doctor_tell_the_user() -> None:
    reader = Reader(restored(HERE), None, 100.0)
    [line] = reader.warnings()
    assert line.startswith("server a runs attempt 1.2 (for 60 s, pid 77), which this daemon's database does not know. ")
    views = reader.nodes()
    assert [view.strangers for view in views] == [[line], []]
    assert line in lines(NodeList(views), 0)[1]
    assert [(check.verdict, check.message) for check in unknown_attempts(views[0])] == [("warn", line)]
