"""Who may die without the job noticing, and what gpq reports about attempts whose shim is gone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs

from tests.agent.node.harness import NodeAgent, survivors, wait_until


def kill_shim(node: NodeAgent, key: str) -> None:
    """Wait until the job's own program runs. Before that, its first process waits for the shim's word, and gives up
    without it."""
    record = json.loads((node.folder(key) / wire.SHIM).read_text())
    first = json.loads((node.folder(key) / wire.STARTED).read_text())["pid"]
    programs = [Path(f"/proc/{pid}/exe") for pid in (first, record["pid"])]
    wait_until(lambda: programs[0].readlink() != programs[1].readlink(), "the job's own program")
    process = procs.read(record["pid"])
    assert process is not None
    assert process.start_time == record["start_time"]
    procs.send(process, signal.SIGKILL)
    wait_until(lambda: not procs.lives(record, procs.boot_id()), "the shim to be gone")


def test_the_job_outlives_a_killed_agent_and_the_next_agent_reports_its_exit(
    agent: Callable[..., NodeAgent], tmp_path: Path
) -> None:
    first = agent("--slots", "1")
    gate = tmp_path / "gate"
    key = first.start(1, ["sh", "-c", f"echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after; exit 9"])
    pid = first.wait_for(key, "running")["pid"]
    first.process.kill()
    first.process.wait()
    second = agent("--slots", "1")
    info = second.attempts()[key]
    assert (info["state"], info["pid"]) == ("running", pid)
    gate.touch()
    assert second.ended(key)["code"] == 9
    assert second.log(key) == b"before\nafter\n"


def test_the_end_of_input_ends_the_agent_and_not_the_job(agent: Callable[..., NodeAgent]) -> None:
    first = agent("--slots", "1")
    key = first.start(1, ["sleep", "600"])
    first.wait_for(key, "running")
    assert first.close() == 0
    second = agent("--slots", "1")
    assert second.attempts()[key]["state"] == "running"
    assert second.ask("quit")["ok"]
    assert second.process.wait(60) == 0
    third = agent("--slots", "1")
    assert third.attempts()[key]["state"] == "running"


def test_a_hang_up_does_not_reach_shim_or_job(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    pid = node.wait_for(key, "running")["pid"]
    shim = json.loads((node.folder(key) / wire.SHIM).read_text())["pid"]
    os.killpg(node.process.pid, signal.SIGHUP)  # what the end of a login session sends
    node.process.wait(60)
    os.kill(shim, signal.SIGHUP)
    os.kill(shim, signal.SIGTERM)
    running = [procs.read(shim), procs.read(pid)]
    assert all(process is not None and process.alive for process in running)
    assert os.getsid(shim) != os.getsid(pid) != node.process.pid


def test_an_orphan_is_reported_and_can_be_killed_completely(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "trap '' TERM; setsid sleep 600 & echo ready; while :; do sleep 1; done"])
    wait_until(lambda: b"ready" in node.log(key), "the job to be ready")
    kill_shim(node, key)
    assert node.wait_for(key, "orphan")["processes"] >= 2
    assert "still uses" in node.try_ask("start", order=node.order(2, ["true"]))["error"]
    assert "is orphan" in node.try_ask("forget", attempt=key)["error"]
    node.ask("stop", attempt=key, mode="kill", grace=0.1)
    record = node.ended(key)
    assert (record["code"], record["signal"], record["asked"]) == (None, None, "kill")
    assert "exit code is unknown" in record["note"]
    assert survivors(node.spool, key) == []


def test_a_stop_that_comes_while_the_shim_dies_is_obeyed_anyway(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    kill_shim(node, key)
    node.wait_for(key, "orphan")
    with open(node.folder(key) / "lock") as lock:  # as a first process has it that has not reached exec yet
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert node.ask("stop", attempt=key, mode="kill", grace=0.1)["attempt"]["state"] == "orphan"
    assert node.ended(key)["asked"] == "kill"
    assert survivors(node.spool, key) == []


def test_an_orphan_that_ends_on_its_own_is_lost_and_never_counts_as_a_success(node: NodeAgent, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    key = node.start(1, ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"])
    node.wait_for(key, "running")
    kill_shim(node, key)
    node.wait_for(key, "orphan")
    gate.touch()
    info = node.wait_for(key, "lost")
    assert (info["exit"]["code"], info["exit"]["stopped"]) == (None, False)
    assert "shim was killed" in info["exit"]["note"]
    node.ask("forget", attempt=key)
    assert key not in node.attempts()


def test_after_a_reboot_an_attempt_is_lost_and_the_note_says_so(agent: Callable[..., NodeAgent], spool: Path) -> None:
    node = agent("--slots", "1")
    key = node.start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    kill_shim(node, key)
    node.close()
    for process in survivors(spool, key):
        procs.send(process, signal.SIGKILL)
    for name in (wire.SHIM, wire.STARTED):  # as a boot with another id would have left them
        record = json.loads((node.folder(key) / name).read_text())
        wire.write_json(str(node.folder(key) / name), {**record, "boot_id": "another"})
    info = agent("--slots", "1").wait_for(key, "lost")
    assert info["exit"]["note"] == "rebooted"


def test_a_foreign_process_with_the_pid_of_a_dead_shim_is_left_alone(
    agent: Callable[..., NodeAgent], spool: Path
) -> None:
    node = agent("--slots", "1")
    key = node.start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    kill_shim(node, key)
    node.close()
    for process in survivors(spool, key):
        procs.send(process, signal.SIGKILL)
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record = json.loads((node.folder(key) / wire.SHIM).read_text())
        wire.write_json(str(node.folder(key) / wire.SHIM), {**record, "pid": stranger.pid})
        again = agent("--slots", "1")
        assert again.wait_for(key, "lost")["exit"]["code"] is None
        again.ask("stop", attempt=key, mode="kill", grace=0)
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_a_signal_is_not_sent_to_another_process_of_the_same_pid() -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        process = procs.read(stranger.pid)
        assert process is not None
        assert not procs.send(process._replace(start_time=process.start_time - 1), signal.SIGKILL)
        assert stranger.poll() is None
        assert procs.send(process, signal.SIGKILL)
        assert stranger.wait(60) == -signal.SIGKILL
        assert not procs.send(process, signal.SIGKILL)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_name_with_parentheses_and_spaces_is_read_right(tmp_path: Path) -> None:
    script = tmp_path / "a) S 1 (b"
    script.symlink_to(os.path.realpath("/bin/sleep"))
    child = subprocess.Popen([str(script), "600"])
    try:
        process = wait_until(lambda: (now := procs.read(child.pid)) and now.name == "a) S 1 (b" and now, "exec")
        assert (process.parent, process.pid) == (os.getpid(), child.pid)
    finally:
        child.kill()
        child.wait()


def test_an_ended_process_that_nobody_collected_does_not_count_as_alive() -> None:
    child = subprocess.Popen(["true"])
    try:
        zombie = wait_until(lambda: (now := procs.read(child.pid)) and now.state == "Z" and now, "a zombie")
        record = {"pid": child.pid, "start_time": zombie.start_time, "boot_id": procs.boot_id()}
        assert not procs.lives(record, procs.boot_id())
    finally:
        child.wait()


def test_two_agents_on_one_spool_see_the_same_and_both_may_stop(agent: Callable[..., NodeAgent]) -> None:
    first, second = agent("--slots", "2"), agent("--slots", "2")
    key = first.start(1, ["sleep", "600"])
    assert second.wait_for(key, "running")["pid"] == first.wait_for(key, "running")["pid"]
    second.ask("stop", attempt=key, mode="kill", grace=0)
    assert first.ended(key) == second.ended(key)
    first.ask("forget", attempt=key)
    assert key not in second.attempts()


def test_a_spool_of_another_machine_is_refused(agent: Callable[..., NodeAgent], spool: Path) -> None:
    if not Path("/etc/machine-id").exists() or not Path("/etc/machine-id").read_text().strip():
        pytest.skip("this system has no machine id")
    spool.mkdir()
    wire.write_json(str(spool / "spool.json"), {"id": "x", "machine": "another"})
    argv = [sys.executable, "-m", "gpq_agent.node", "--spool", str(spool)]
    path = str(Path(wire.__file__).resolve().parent.parent)
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "belongs to another machine" in done.stderr


def test_an_idle_shim_uses_next_to_no_cpu(node: NodeAgent) -> None:
    """Clock ticks over a second or more of real idling: far fewer than a polling loop would use."""
    key = node.start(1, ["sleep", "600"])
    node.wait_for(key, "running")
    shim = json.loads((node.folder(key) / wire.SHIM).read_text())["pid"]

    def ticks() -> int:
        fields = Path(f"/proc/{shim}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    threading.Event().wait(0.2)
    before, began = ticks(), time.monotonic()
    threading.Event().wait(1.0)
    assert ticks() - before <= 0.2 * (time.monotonic() - began) * os.sysconf("SC_CLK_TCK")
