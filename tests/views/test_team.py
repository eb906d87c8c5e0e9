"""What `gpq team` says of members, decisions and checks."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.rpc.job_answers import HoldingView, JobList, TeamView
from gpq.rpc.team_messages import AuditLines, GpuHours, Look, MemberRow, Membership, Queue, QueueRow, Reasons
from gpq.views import queue, team
from gpq.views.plain import width

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


def summary(*others: HoldingView) -> TeamView:
    return TeamView("lab", 8, [HoldingView("ana", 4, 4, 7), *others])


def head(view: TeamView, limit: int = 0) -> list[str]:
    """What `gpq status` shows above the queue."""
    *lines, last = queue.lines(msgspec.to_builtins(JobList([], 0, team=view)), limit)
    assert last == "no jobs"
    return lines


def test_status_begins_with_the_team_and_counts_only_jobs_of_others() -> None:
    bob, cat = HoldingView("bob", 2, 4, 0), HoldingView("cat", 2, 2, 1)
    line = "team lab: you hold 4 of 8 GPUs (floor 4), bob 2 (4)"
    assert head(summary(bob)) == [line]
    assert head(summary(bob, cat)) == [f"{line}, cat 2 (2)", "1 job of others waits"]
    assert head(summary(bob, cat, cat))[1] == "2 jobs of others wait"
    many = head(summary(*(HoldingView(f"m{number}", 1, 1, 1) for number in range(30))), 60)
    assert max(map(width, many)) <= 60
    assert "m7 1 (1), 22 more: gpq team" in "".join(many).replace("  ", " ")
    assert many[-1] == "30 jobs of others wait"
    assert "\x1b" not in "".join(head(summary(HoldingView("b\x1b[2J", 1, 1, 1))))


def test_a_report_has_the_part_of_all_hours_and_no_share_of_who_has_left() -> None:
    answer = GpuHours("2026-11-01", "2026-11-03", {"ana": 3.0, "bob": 1.0}, {"ana": 2.0})
    period, _, _, *rows = team.report(answer, 80)
    assert period == "2026-11-01 to 2026-11-03, in whole days (UTC)"
    assert [row.split() for row in rows] == [["ana", "2", "3.00", "75%"], ["bob", "-", "1.00", "25%"]]
    assert len(team.report(GpuHours("2026-11-01", "2026-11-01", {"ana": 0.0}, {"ana": 2.0}), 80)) == 1


def test_the_live_view_has_the_members_above_the_queue() -> None:
    look = Look(Membership([row("ana", 2, 1)], 4), Queue([QueueRow("bob", 1, "pending", 0, 1.0)], {}))
    firsts = [line.partition(" ")[0] for line in team.page(look, 80)]
    assert [word for word in firsts if word in ("MEMBER", "ana", "JOB", "bob/1")] == ["MEMBER", "ana", "JOB", "bob/1"]
