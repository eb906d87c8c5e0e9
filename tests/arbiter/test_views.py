"""What the arbiter shows a member who asks."""

from __future__ import annotations

import os
from pathlib import Path

from gpq.arbiter import roster
from gpq.arbiter.arbiter import Arbiter
from gpq.core.model.snapshot import Config
from gpq.policies.registry import policy
from gpq.ports import Peer
from gpq.rpc import codec
from gpq.rpc.team_codec import decode_team_answer
from gpq.rpc.team_messages import AuditLines, View


def test_a_client_takes_the_audit_however_long_and_strange_its_lines_are(tmp_path: Path) -> None:
    roster.create(f"{tmp_path}/roster.json", "lab", "")
    arbiter = Arbiter(str(tmp_path), policy("fifo"), Config())
    arbiter.audit.append("grant", devices=["GPU-4f"] * 1000)
    with open(arbiter.audit_path, "ab") as stream:
        stream.write(b"\x1b torn \xff\n")
    arbiter.audit.append("recall")
    answer = arbiter.handle(View(kind="audit"), Peer(os.getuid(), 1, "", lambda: False))
    trail = decode_team_answer(codec.encode_result(answer), AuditLines)
    assert [len(line) == 1000 for line in trail.lines] == [False, True, False]
    assert "recall" in trail.lines[-1]
