"""What the arbiter shows a member who asks."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from gpq.arbiter import roster
from gpq.arbiter.arbiter import Arbiter
from gpq.core.model.snapshot import Config
from gpq.policies.registry import policy
from gpq.ports import Peer
from gpq.rpc import codec
from gpq.rpc.team_codec import decode_team_answer
from gpq.rpc.team_messages import AuditLines, GpuHours, View


def test_a_client_takes_the_audit_however_long_and_strange_its_lines_are(tmp_path: Path) -> None:
    roster.create(f"{tmp_path}/roster.json", "lab", "")
    arbiter = Arbiter(str(tmp_path), policy("fifo"), Config())
    arbiter.audit.append("grant", devices=["GPU-4f"] * 1000)
    with open(tmp_path / "audit.jsonl", "ab") as stream:
        stream.write(b"\x1b torn \xff\n")
    arbiter.audit.append("recall")
    answer = arbiter.handle(View(kind="audit"), Peer(os.getuid(), 1, "", lambda: False))
    trail = decode_team_answer(codec.encode_result(answer), AuditLines)
    assert [len(line) == 1000 for line in trail.lines] == [False, True, False]
    assert "recall" in trail.lines[-1]


@pytest.mark.parametrize(
    ("since", "until", "days", "hours"),
    [
        ("", "", ("2026-11-01", "2026-11-03"), {"ana": 3.0, "bob": 4.0}),
        ("2026-11-02", "", ("2026-11-02", "2026-11-03"), {"ana": 2.0, "bob": 1.0}),
        ("2026-11-02", "2026-11-03", ("2026-11-02", "2026-11-02"), {"ana": 2.0}),
        ("2027-01-01", "", ("", ""), {}),
    ],
)
def test_a_report_counts_whole_days_also_of_who_has_left(
    tmp_path: Path, since: str, until: str, days: tuple[str, str], hours: dict[str, float]
) -> None:
    roster.create(f"{tmp_path}/roster.json", "lab", "")
    arbiter = Arbiter(str(tmp_path), policy("fifo"), Config())
    own = next(iter(arbiter.roster.members))
    for day, member, gpu_seconds in (("01", "ana", 1.0), ("02", "ana", 2.0), ("01", "bob", 3.0), ("03", "bob", 1.0)):
        at = datetime.fromisoformat(f"2026-11-{day}T23:59:59+00:00").timestamp()
        arbiter.ledger.charge(member, 3600 * gpu_seconds, at)
    request = View(kind="report", since=since, until=until)
    answer = arbiter.handle(request, Peer(os.getuid(), 1, "", lambda: False))
    report = decode_team_answer(codec.encode_result(answer), GpuHours)
    assert (report.since, report.until) == days
    assert report.gpu_hours == {**hours, own: 0.0}
    assert report.shares == {own: 1.0}
