"""Fork bombs and missing descriptors: refused in one line, no living process counts as gone, and everything
recovers."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs

from tests.agent.node.harness import NodeAgent, shims, survivors, wait_until
from tests.support.cgroup import group, lacking
from tests.support.figures import Figures

BOMB = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\n" + (
    "while True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.005)\n"
)
FULL = (
    "import os, sys\nheld = []\ntry:\n    while True:\n        held.append(os.open('/dev/null', 0))\n"
    "except OSError as error:\n    sys.exit(error.errno)\n"
)


@pytest.mark.row("31")
@pytest.mark.skipif(bool(lacking("pids")), reason=lacking("pids"))
def test_a_fork_bomb_is_ended_completely_and_starts_next_to_it_are_refused(
    agent: Callable[..., NodeAgent], figures: Figures
) -> None:
    node = agent("--slots", "2")
    with group("pids", pids__max=120) as place:
        (place / "cgroup.procs").write_text(str(node.process.pid))
        key = node.start(1, [sys.executable, "-c", BOMB])
        wait_until(lambda: int((place / "pids.current").read_text()) >= 120, "there is no room for a process")
        refused = node.try_ask("start", order=node.order(2, ["true"], devices=["slot-1"]))
        figures.exactly("a start beside it", (refused["ok"], refused.get("kind")), (False, "busy"))
        assert "cannot start a process on this server" in refused["error"]
        assert "pids.max" in refused["hint"]
        assert node.attempts()[key]["state"] == "running"
        node.ask("stop", attempt=key, mode="kill", grace=0)
        node.ended(key)
        figures.exactly("processes left of the fork bomb", len(survivors(node.spool, key)), 0)
        after = node.ended(node.start(2, ["true"], devices=["slot-1"]))
        figures.exactly("exit code of the next start", after["code"], 0)
        node.close()


@pytest.mark.row("31")
def test_an_agent_with_64_descriptors_serves_and_one_without_any_calls_nothing_gone(
    agent: Callable[..., NodeAgent], figures: Figures
) -> None:
    node = agent("--slots", "4")
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (64, 4096))
    first = node.start(1, ["sleep", "600"])
    for job in range(2, 22):
        node.ended(node.start(job, ["true"], devices=["slot-1"]))
    full = node.ended(node.start(22, [sys.executable, "-c", FULL], devices=["slot-1"]))
    figures.exactly("a job that opens everything ends by its own error", full["code"], errno.EMFILE)
    shim = wire.read_json(str(node.folder(first) / wire.SHIM))
    assert shim is not None
    for pid in (node.process.pid, shim["pid"]):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 4096))
    refused = node.try_ask("start", order=node.order(23, ["true"], devices=["slot-1"]))
    assert (refused["ok"], refused["kind"]) == (False, "busy"), refused
    os.kill(shim["pid"], procs.signal.SIGUSR1)  # it looks and sees nothing
    asked = node.send("watch", offsets={}, wait=0.2, seen="other")
    resource.prlimit(shim["pid"], resource.RLIMIT_NOFILE, (64, 4096))
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (64, 4096))
    states = {one["job"]: one["state"] for one in node.reply(asked)["attempts"]}
    figures.exactly("what is told of a job that lives", states[1], "running")
    figures.exactly("supervisors that live", len([one for one in shims(node.spool) if one.pid == shim["pid"]]), 1)
    assert node.ended(node.start(23, ["true"], devices=["slot-1"]))["code"] == 0
    node.ask("stop", attempt=first, mode="kill", grace=0)
    assert node.ended(first)["signal"] in (9, 15)


def test_an_agent_that_cannot_look_does_not_say_that_a_process_is_gone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        for look in (lambda: procs.read(os.getpid()), lambda: procs.mark_of(os.getpid(), "PATH")):
            with pytest.raises(OSError, match="Too many open files"):
                look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert procs.read(os.getpid()) is not None
