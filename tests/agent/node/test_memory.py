"""Out of memory: reported only on the kernel's own evidence, and only for the right job."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from gpq_agent.node.host import cgroups

from tests.agent.node.harness import NodeAgent, wait_until
from tests.support.cgroup import group, lacking
from tests.support.figures import Figures

HOG = "b = []\nwhile True:\n    b.append(bytearray(b'x' * (8 << 20)))\n"
# The kernel kills its child and not the job itself, as with a worker of a DataLoader.
WORKER = f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {HOG!r}]).returncode != 0)\n"

needs_memory = pytest.mark.skipif(bool(lacking("memory")), reason=lacking("memory"))


@needs_memory
@pytest.mark.row("30")
def test_the_cause_is_reported_with_its_evidence_and_only_for_the_right_job(
    agent: Callable[..., NodeAgent], figures: Figures
) -> None:
    first, second = agent("--slots", "4"), agent("--slots", "4")
    with group("memory", "a", memory__limit_in_bytes=96 << 20) as narrow, group("memory", "b") as wide:
        (narrow / "cgroup.procs").write_text(str(first.process.pid))
        (wide / "cgroup.procs").write_text(str(second.process.pid))
        keys = {
            "a hog": first.start(1, [sys.executable, "-c", HOG]),
            "killed by hand": second.start(2, ["sh", "-c", "sleep 1; kill -9 $$"], devices=["slot-1"]),
        }
        causes = {name: first.ended(key) for name, key in keys.items()}
        worker = first.ended(first.start(3, [sys.executable, "-c", WORKER]))
        first.close()
        second.close()
    told = {name: (record["signal"], record["oom"]) for name, record in causes.items()}
    figures.exactly("signal and want of memory", told, {"a hog": (9, True), "killed by hand": (9, False)})
    assert f"oom_kill rose from 0 to 1 in {narrow}/memory.oom_control" in causes["a hog"]["note"]
    assert "not by gpq" in causes["killed by hand"]["note"]
    assert (worker["code"], worker["oom"]) == (1, False)
    assert "killed a process next to it because memory ran out (oom_kill rose from 1 to 2" in worker["note"]


@needs_memory
def test_an_earlier_kill_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    with group("memory", memory__limit_in_bytes=64 << 20) as place:
        code = f"open({str(place / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid()))\n"
        mine = subprocess.Popen([sys.executable, "-c", code + "input()"], stdin=subprocess.PIPE)
        wait_until(lambda: str(mine.pid) in (place / "cgroup.procs").read_text(), "it is in its group")
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        memory = cgroups.Memory(mine.pid)
        assert subprocess.run([sys.executable, "-c", code + HOG], check=False).returncode == -9
        assert "oom_kill rose from 0 to 1" in memory.kill_evidence()
        for _ in range(12):
            now[0] += 1.5
            memory.look()
        assert memory.kill_evidence() == ""
        mine.communicate(b"\n")
