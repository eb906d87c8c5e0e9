"""What drain and undrain ask of the loop: idempotent, and nothing for a server that does not exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.control import node_requests
from gpq.control.reader import Reader
from gpq.core.model.events import Event, NodeDrained, NodeUndrained
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId
from gpq.errors import NotFound, UsageError
from gpq.rpc import requests
from gpq.rpc.node_answers import Drained
from tests.support.builders import black_box, node, on, running, snapshot

HERE = snapshot(node("a"), node("b"), running(1, on("a", 0)), running(2, on("a", 1), spec_=black_box()))
A = NodeId("a")


def drain(state: Snapshot, name: str, reason: str, now: float, by: str) -> tuple[list[Event], Drained]:
    return node_requests.drain(state, requests.Drain(name, reason), now, by)


def undrain(state: Snapshot, name: str, now: float, by: str) -> tuple[list[Event], Drained]:
    return node_requests.undrain(state, requests.Undrain(name), now, by)


def test_a_drain_names_the_jobs_that_leave_and_stay() -> None:
    events, answer = drain(HERE, "a", "repair", 7.0, "ada")
    assert events == [NodeDrained(7.0, A, "repair", "ada")]
    assert (answer.changed, answer.leaving, answer.staying) == (True, [1], [2])


@pytest.mark.parametrize(("reason", "becomes"), [("", None), ("repair", None), ("other", "other")])
def test_a_second_drain_only_changes_the_reason(reason: str, becomes: str | None) -> None:
    events, answer = drain(replace(HERE, drained={A: "repair"}), "a", reason, 7.0, "bo")
    assert events == ([NodeDrained(7.0, A, becomes, "bo")] if becomes else [])
    assert (answer.changed, answer.reason) == (bool(becomes), becomes or "repair")


def test_undrain_is_idempotent() -> None:
    assert undrain(replace(HERE, drained={A: ""}), "a", 7.0, "ada")[0] == [NodeUndrained(7.0, A, "ada")]
    events, answer = undrain(HERE, "a", 7.0, "ada")
    assert (events, answer.changed, answer.drained) == ([], False, False)


def test_unknown_nodes_and_unprintable_reasons_are_refused() -> None:
    for call in (lambda: drain(HERE, "c", "", 7.0, ""), lambda: undrain(HERE, "c", 7.0, "")):
        with pytest.raises(NotFound, match="no server `c`"):
            call()
    with pytest.raises(UsageError):
        drain(HERE, "a", "two\nlines", 7.0, "")


def test_the_row_of_a_server_shows_state_and_reason() -> None:
    silent = replace(node("b", state=NodeState.UNREACHABLE), reason="cut")
    here = replace(snapshot(node("a"), silent), drained={A: "repair", NodeId("b"): "moving"})
    rows = Reader(here, None, 0.0).nodes()
    assert [(row.state, row.reason, row.drained) for row in rows] == [
        ("drained", "repair", True),
        ("unreachable", "cut, drained: moving", True),
    ]
