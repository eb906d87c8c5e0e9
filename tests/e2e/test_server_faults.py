"""Faults of servers and of their jobs, as a user of a real daemon sees them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpq.client.connection import Connection
from gpq.rpc.job_answers import CancelResult, Changed
from gpq.rpc.requests import Cancel, Hold
from tests.e2e.harness import ROOT, Daemon
from tests.support.cgroup import freeze, group, lacking
from tests.support.figures import Figures
from tests.support.fuse import Served, served
from tests.support.processes import running_children
from tests.support.waiting import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
# Notes each TERM and continues. Only USR1 ends it: `saving` seconds later it exits with 75, because it has
# checkpointed.
SLOW = """
import os, signal, sys, time
def save(*_):
    open("asked", "a").write(f"{time.monotonic()}\\n")
    time.sleep(float(sys.argv[1]))
    sys.exit(75)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, save)
open("ready-" + os.environ["GPQ_ATTEMPT"], "w").close()
time.sleep(600)
"""


def attempt_pids(daemon: Daemon, job: int) -> list[psutil.Process]:
    mark = f"{daemon.home}/nodes/local/attempts/{job}."
    return [one for one in psutil.process_iter() if _variable(one, "GPQ_RUN_DIR").startswith(mark)]


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""


def agent_of(daemon: Daemon) -> psutil.Process:
    assert daemon.process is not None
    pid = daemon.process.pid
    return wait_until(lambda: running_children(pid, "gpq_agent.node"), "a node agent")[0]


@pytest.mark.row("28")
def test_a_slow_checkpoint_gets_its_grace_and_a_job_that_ignores_term_is_killed_after_it(figures: Figures) -> None:
    with Daemon(slots=2) as daemon:
        (daemon.work / "slow.py").write_text(SLOW)
        options = {"level": "signal", "signal": "USR1", "grace": 6.0}
        saves = daemon.submit(sys.executable, "slow.py", "3", **options)
        wait_until((daemon.work / "ready-1").exists, "it is ready")
        daemon.call(Hold([str(saves)]), Changed)
        held = daemon.until(saves, "held")
        figures.exactly("a checkpoint of 3 s within a grace of 6 s", held.attempts[0].outcome, "stopped (hold)")
        assert daemon.detail(saves).job.attempt == 1
        (daemon.work / "ready-1").unlink()
        never = daemon.submit(sys.executable, "slow.py", "600", **options)
        wait_until((daemon.work / "ready-1").exists, "it is ready")
        (daemon.work / "asked").unlink()
        began = time.monotonic()
        daemon.call(Hold([str(never)]), Changed)
        wait_until((daemon.work / "asked").exists, "it was asked")
        asked = float((daemon.work / "asked").read_text().split()[0])
        daemon.until(never, "held")
        over = time.monotonic()
        figures.at_most("from the order to KILL, with a grace of 6 s and 5 s for TERM", over - asked, 6.0 + 5.0 + 4.0)
        assert over - began >= 6.0 + 5.0
        assert any("after it was asked to stop" in line for line in daemon.detail(never).notices)
        assert attempt_pids(daemon, never) == []


@pytest.mark.row("29")
@pytest.mark.skipif(bool(lacking("freezer")), reason=lacking("freezer"))
def test_a_job_that_cannot_be_killed_is_stuck_keeps_its_slot_and_blocks_nobody(figures: Figures) -> None:
    with Daemon(slots=2) as daemon, group("freezer") as ice:
        job = daemon.shell("exec sleep 600")
        daemon.until(job, "running")
        [process] = wait_until(lambda: attempt_pids(daemon, job), "its process")
        freeze(ice, process.pid)
        began = time.monotonic()
        daemon.call(Cancel([str(job)], wait=0.0), CancelResult)
        longest = 0.0
        others = []
        while not (row := daemon.detail(job).job).reason.startswith("stuck: "):
            asked = time.monotonic()
            other = daemon.shell("sleep 1; exit 3")  # otherwise there would be hundreds
            daemon.ended(other)
            longest = max(longest, time.monotonic() - asked)
            others.append(daemon.detail(other).job)
            assert time.monotonic() - began < 180.0, row
        figures.at_most("from the cancel to `stuck`", time.monotonic() - began, 60.0)
        figures.at_most(f"the slowest of {len(others)} other jobs meanwhile", longest, 10.0)
        assert {other.exit_status for other in others} == {3}
        assert f"pid {process.pid} (" in row.reason
        assert "state D) cannot be killed" in row.reason
        [node] = daemon.nodes().nodes
        held = [device for device in node.devices if device.job == job]
        figures.exactly("slots kept by the stuck job", len(held), 1)
        waiting = [daemon.shell("true") for _ in range(3)]
        assert set(daemon.ended(*waiting).values()) == {("completed", 0)}
        assert [device.job for device in daemon.nodes().nodes[0].devices if device.job] == [job]
        (ice / "freezer.state").write_text("THAWED")
        assert daemon.ended(job)[job][0] == "cancelled"
        wait_until(lambda: not any(device.job for device in daemon.nodes().nodes[0].devices), "its slot is free")


@pytest.mark.row("30")
@pytest.mark.skipif(bool(lacking("memory")), reason=lacking("memory"))
def test_a_job_killed_for_memory_says_so_and_an_agent_killed_for_memory_comes_back(figures: Figures) -> None:
    with (
        group("memory", "narrow", memory__limit_in_bytes=96 << 20) as narrow,
        group("memory", "small", memory__limit_in_bytes=1 << 20) as small,
        Daemon(slots=2) as daemon,
    ):
        gate = daemon.work / "gate"
        lives = daemon.shell(f"echo run >> lives; while [ ! -e {gate} ]; do sleep 0.05; done; exit 5")
        wait_until((daemon.work / "lives").exists, "it lives")
        agent = agent_of(daemon)
        (narrow / "cgroup.procs").write_text(str(agent.pid))
        hog = daemon.submit(sys.executable, "-c", "b = []\nwhile True: b.append(bytearray(b'x' * (8 << 20)))")
        assert daemon.ended(hog) == {hog: ("failed", 137)}
        reason = daemon.detail(hog).job.reason
        figures.exactly("cause of the job's end is reported", "out of memory: the kernel killed it" in reason, True)
        assert "oom_kill rose from" in reason
        (small / "cgroup.procs").write_text(str(agent.pid))
        daemon.submit("sh", "-c", "true", *["x" * 100_000] * 8)  # the agent needs some memory to read its order
        wait_until(lambda: not agent.is_running(), "the agent was killed")
        assert "oom_kill 1" in (small / "memory.oom_control").read_text()
        began = time.monotonic()
        other = daemon.shell("exit 6")
        assert daemon.ended(other) == {other: ("failed", 6)}
        figures.at_most("the node serves again after its agent was killed", time.monotonic() - began, 15.0)
        assert agent_of(daemon).pid != agent.pid
        gate.touch()
        figures.exactly("end of the job that ran at the time", daemon.ended(lives)[lives], ("failed", 5))
        assert (daemon.work / "lives").read_text() == "run\n"


@pytest.mark.row("31")
def test_a_daemon_with_64_descriptors_refuses_a_crowd_and_recovers(figures: Figures) -> None:
    with Daemon(slots=2) as daemon:
        assert daemon.process is not None
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (64, 4096))
        lives = daemon.shell("while [ ! -e gate ]; do sleep 0.05; done; exit 4")
        daemon.until(lives, "running")
        crowd = []
        try:
            crowd.extend(Connection(str(daemon.home / "gpq.sock")) for _ in range(100))
            served = psutil.Process(daemon.process.pid)
            wait_until(lambda: served.num_fds() >= 60, "its listener reaches the limit")
            assert daemon.process.poll() is None
        finally:
            for connection in crowd:
                connection.close()
        began = time.monotonic()
        other = daemon.shell("exit 3")
        assert daemon.ended(other) == {other: ("failed", 3)}
        figures.at_most("served again after the crowd left", time.monotonic() - began, 15.0)
        (daemon.work / "gate").touch()
        figures.exactly("end of the job that ran at the time", daemon.ended(lives)[lives], ("failed", 4))


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Served]:
    place = tmp_path / "remote"
    place.mkdir()
    with served(place, "fuse.sshfs") as one:
        yield one


@needs_root
@pytest.mark.row("42")
def test_a_failing_file_server_affects_only_its_jobs(remote: Served, figures: Figures) -> None:
    with Daemon(slots=2) as daemon:
        good = daemon.shell("exit 3", cwd=str(remote.work))
        assert daemon.ended(good) == {good: ("failed", 3)}
        lacking = {}
        for name, error in (("ESTALE", 116), ("ENOENT", 2), ("EIO", 5)):
            remote.error = error
            job = daemon.shell("exit 4", cwd=str(remote.work))
            wait_until(lambda job=job: str(remote.work) in daemon.detail(job).job.reason, f"{name} is reported")
            lacking[name] = job
        states = {name: daemon.state(job) for name, job in lacking.items()}
        figures.exactly("jobs whose folder fails", states, dict.fromkeys(lacking, "pending"))
        remote.error = 0
        again = daemon.shell("exit 4", cwd=str(remote.work))  # so gpq checks the folder now, not after 30 s
        ends = daemon.ended(*lacking.values(), again)
        figures.exactly("once the folder is back", set(ends.values()), {("failed", 4)})
        remote.hang()
        waits = daemon.shell("exit 7", cwd=str(remote.work))
        looked = daemon.shell("exit 7", cwd=f"{remote.work}/.")  # gpq knows nothing about this one yet
        longest = 0.0
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            began = time.monotonic()
            other = daemon.shell("exit 3")
            assert daemon.ended(other) == {other: ("failed", 3)}
            longest = max(longest, time.monotonic() - began)
            assert [node.state for node in daemon.nodes().nodes] == ["up"]
        figures.at_most("another job while a file server is silent", longest, 8.0)
        assert not daemon.detail(waits).job.ended_at
        wait_until(lambda: "does not answer on this server" in daemon.detail(looked).job.reason, "gpq says so")
        remote.answer()
        again = daemon.shell("exit 7", cwd=f"{remote.work}/.")
        ends = daemon.ended(waits, looked, again)
        figures.exactly("ends of the jobs that waited for the folder", set(ends.values()), {("failed", 7)})


@needs_root
@pytest.mark.row("42")
def test_a_state_directory_on_a_network_file_system_is_refused_in_one_line(remote: Served, figures: Figures) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "GPQ_HOME": str(remote.work / "gpq")}
    argv = [sys.executable, "-m", "gpq.daemon.main"]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert "is on a network file system (fuse.sshfs)" in done.stderr
    assert "set GPQ_HOME to a folder on a local disk" in done.stderr
    figures.exactly(
        "state directory on a network file system: exit code, lines",
        (done.returncode, len(done.stderr.splitlines())),
        (5, 2),
    )


# Kills the agent and every supervisor of its node, as `pkill -f gpq` would. Notes each time that it started.
KILLER = """
import os, signal, time
open("killer-ran", "a").write("run\\n")
home = os.environ["GPQ_RUN_DIR"].partition("/attempts/")[0]
for name in os.listdir("/proc"):
    try:
        line = open(f"/proc/{name}/cmdline", "rb").read()
    except OSError:
        continue
    if b"gpq_agent.node" in line and home.encode() in line:
        os.kill(int(name), signal.SIGKILL)
"""


@pytest.mark.row("44, 45")
def test_jobs_that_fail_at_once_or_kill_their_agent_are_held_after_three_attempts(figures: Figures) -> None:
    with Daemon(nodes={"a": 1, "b": 1}) as daemon:
        (daemon.work / "killer.py").write_text(KILLER)
        killer = daemon.submit(sys.executable, "killer.py", level="signal", retries=50)
        looper = daemon.shell("echo run >> looper-ran; exit 1", retries=50)
        found = daemon.until(looper, "held")
        ran = (daemon.work / "looper-ran").read_text().count("run")
        figures.exactly("attempts of a job that fails at once", ran, 3)
        assert "held: failed 3 times in a row" in found.job.reason
        found = daemon.until(killer, "held")
        ran = (daemon.work / "killer-ran").read_text().count("run")
        figures.at_most("attempts of a job that kills its node's agent", ran, 3, "")
        assert "held: its server went down or its supervisor was killed 3 times in a row" in found.job.reason
        assert daemon.process is not None
        kill = f"kill -9 $(pgrep -P {daemon.process.pid} -f gpq_agent.node)"
        once = daemon.shell(f"echo run >> once-ran; {kill}; sleep 1; exit 8")
        figures.exactly("end of a job that kills the agents alone", daemon.ended(once)[once], ("failed", 8))
        assert (daemon.work / "once-ran").read_text() == "run\n"
        others = [daemon.shell("exit 3") for _ in range(2)]
        assert set(daemon.ended(*others).values()) == {("failed", 3)}
