"""A process that the kernel does not let go: told, waited for, and never reported as ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node import supervise

from tests.agent.node.harness import NodeAgent, wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not FREEZER.is_dir(),
    reason="making a process unkillable needs root and the freezer of control groups, version 1",
)


@pytest.fixture
def ice() -> Iterator[Path]:
    """A control group whose processes cannot even be killed while it is frozen."""
    path = FREEZER / f"gpq-test-{os.getpid()}"
    path.mkdir()
    yield path
    (path / "freezer.state").write_text("THAWED")

    def emptied() -> bool:
        try:
            path.rmdir()
        except OSError:
            return False
        return True

    wait_until(emptied, "the control group to be empty")


def test_what_cannot_be_killed_stays_running_with_a_note_until_it_goes(ice: Path, node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    pid = node.wait_for(key, "running")["pid"]
    (ice / "cgroup.procs").write_text(str(pid))
    (ice / "freezer.state").write_text("FROZEN")
    node.ask("stop", attempt=key, mode="kill", grace=0)
    other = node.start(2, ["true"], devices=["slot-1"])
    assert node.ended(other)["code"] == 0
    note = node.folder(key) / supervise.NOTE
    wait_until(note.exists, "the note", patience=supervise.STUCK_AFTER + 60)
    info = node.attempts()[key]
    assert info["state"] == "running"
    assert f"pid {pid} cannot be killed" in info["exit"]["note"]
    device = next(one for one in node.ask("probe")["devices"] if one["id"] == "slot-0")
    assert (device["state"], device["reason"]) == ("quarantined", f"attempt {key}: {info['exit']['note']}")
    assert not (node.folder(key) / wire.EXIT).exists()
    (ice / "freezer.state").write_text("THAWED")
    record = node.ended(key)
    assert record["signal"] in (9, 15)
    assert "cannot be killed" in record["note"]
