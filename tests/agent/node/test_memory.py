"""Out of memory: told only on the kernel's own evidence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.node.harness import NodeAgent, wait_until

CONTROLLER = Path("/sys/fs/cgroup/memory")
HOG = "b = []\nwhile True:\n    b.append(bytearray(b'x' * (8 << 20)))\n"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (CONTROLLER / "memory.limit_in_bytes").exists(),
    reason="limiting memory needs root and the memory controller of control groups, version 1",
)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 96 MiB without swap."""
    path = CONTROLLER / f"gpq-test-{os.getpid()}"
    path.mkdir()
    (path / "memory.limit_in_bytes").write_text(str(96 << 20))
    yield path

    def emptied() -> bool:
        try:
            path.rmdir()
        except OSError:
            return False
        return True

    wait_until(emptied, "the control group to be empty")


def test_a_job_killed_for_want_of_memory_is_told_so(
    group: Path, agent: Callable[..., NodeAgent]
) -> None:
    node = agent("--slots", "2")
    (group / "cgroup.procs").write_text(str(node.process.pid))
    calm = node.start(1, ["sh", "-c", "kill -9 $$"])
    record = node.ended(calm)
    assert (record["signal"], record["oom"]) == (9, False)
    assert "not by gpq" in record["note"]
    greedy = node.start(2, [sys.executable, "-c", HOG], devices=["slot-1"])
    record = node.ended(greedy)
    assert (record["signal"], record["oom"]) == (9, True)
    assert "want of memory" in record["note"]
    node.close()
