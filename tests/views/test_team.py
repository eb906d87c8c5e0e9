"""What `gpq team` says of members, decisions and checks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.rpc.team_messages import AuditLines, MemberRow, Membership, Queue, QueueRow, Reasons
from gpq.views import team

ENTRY = {"at": "2026-12-01T10:00:00.000+00:00", "before": "", "member": "bob", "value": 1.0, "by": "ana", "job": 7}


def row(name: str, floor: int, devices: int) -> MemberRow:
    return MemberRow(name, 1.0, False, False, False, floor, devices, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("key", team.DECISIONS)
def test_each_decision_has_words(key: str) -> None:
    what, by, _ = key.partition(" by")
    entry = {**ENTRY, "what": what, "epoch": 4, "devices": [["gpu1", ["a", "b"]]]}
    if not by:
        del entry["by"]
    text = team.decision(json.dumps(entry)).partition("  ")[2]
    assert text
    assert "{" not in text
    assert ("ana" in text) == bool(by)


@given(
    st.text() | st.dictionaries(st.text(), st.text()).map(json.dumps) | st.just(json.dumps({"what": "share", "by": 1}))
)
def test_a_line_that_is_no_decision_stays_as_it_is(line: str) -> None:
    assert team.decision(line) == line


def test_only_a_member_with_waiting_jobs_can_be_below_the_floor() -> None:
    answer = Membership([row("ana", 2, 1), row("bob", 2, 1)], 4)
    queue = Queue([QueueRow("bob", 1, "pending", 0, 1.0), QueueRow("ana", 1, "running", 1, 1.0)], {})
    results = {text.partition(" ")[0]: holds for holds, text in team.checks(answer, queue, AuditLines([], 0), [])}
    assert (results["ana"], results["bob"]) == (True, False)


def test_the_queue_of_all_begins_with_those_who_have_gpus_and_controls_no_terminal() -> None:
    rows = [
        QueueRow("bob", 1, "pending", 0, 61.0, "\x1b[2Jtrain", why="waits for GPUs"),
        QueueRow("ana", 7, "running", 2, 5.0, servers=["gpu1", "gpu2"]),
    ]
    head, first, second, more = team.queue(Queue(rows, {"bob": 3}), 200)
    assert head.split() == ["JOB", "NAME", "STATE", "GPUS", "AGE", "REASON"]
    assert first.split()[:6] == ["ana/7", "-", "running", "2", "on", "gpu1,"]
    assert second.startswith("bob/1")
    assert second.endswith("waits for GPUs")
    assert "\x1b" not in second
    assert more == "3 more jobs of bob wait"


def test_reasons_begin_with_the_headline_and_control_no_terminal() -> None:
    assert team.reasons(Reasons(["waits for GPUs", "bob\x1b[2J holds 4"]), 80)[0] == "waits for GPUs"
    assert "\x1b" not in "".join(team.reasons(Reasons(["a", "bob\x1b[2J holds 4"]), 80))
    assert len(team.reasons(Reasons([]), 80)) == 1
