"""A process that the kernel does not release: gpq reports it, waits for it, and never calls it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.shim import supervise
from gpq_agent.node.spool.shapes import NOTE

from tests.agent.node.harness import NodeAgent, wait_until
from tests.support.cgroup import freeze, group, lacking

pytestmark = pytest.mark.skipif(bool(lacking("freezer")), reason=lacking("freezer"))


@pytest.fixture
def ice() -> Iterator[Path]:
    """A control group whose frozen processes cannot even be killed."""
    with group("freezer") as path:
        yield path


def test_a_process_that_cannot_be_killed_stays_running_with_a_note_until_it_goes(ice: Path, node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    pid = node.wait_for(key, "running")["pid"]
    freeze(ice, pid)
    node.ask("stop", attempt=key, mode="kill", grace=0)
    other = node.start(2, ["true"], devices=["slot-1"])
    assert node.ended(other)["code"] == 0
    note = node.folder(key) / NOTE
    wait_until(note.exists, "the note", patience=supervise.STUCK_AFTER + 60)
    info = node.attempts()[key]
    assert info["state"] == "running"
    assert f"pid {pid} (" in info["exit"]["note"]
    assert "state D) cannot be killed" in info["exit"]["note"]
    device = next(one for one in node.ask("probe")["devices"] if one["id"] == "slot-0")
    assert (device["state"], device["reason"]) == ("quarantined", f"attempt {key}: {info['exit']['note']}")
    assert not (node.folder(key) / wire.EXIT).exists()
    (ice / "freezer.state").write_text("THAWED")
    record = node.ended(key)
    assert record["signal"] in (9, 15)
    assert "cannot be killed" in record["note"]
