"""Reboots of servers and deaths of agents, with gpq's jobs on them: rows 21 and 23 of the table of faults."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.figures import Figures
from tests.lab.daemons import LabDaemon
from tests.lab.lab import Lab
from tests.lab.server import Server
from tests.waiting import wait_until

STARTS = "echo run >>ran-$GPQ_JOB_ID; while ! test -e go; do sleep 0.1; done; exit 7"
REBOOTS = 3
KILLS = 5


def agents(server: Server) -> list[int]:
    """Pids of the node agents there: what the connections run. (Shims have the same words, and are not of sshd.)"""
    sessions = server.inside("pgrep", "-d,", "-x", "sshd").strip()
    found = server.inside("pgrep", "-P", sessions, "-f", "gpq_agent.node --spool", check=False).split()
    inner = {int(pid) for pid in found}
    return [pid for pid in server.processes() if server.pid_inside(pid) in inner]


@pytest.mark.row("21")
def test_a_reboot_is_told_from_a_restart_and_its_slots_are_free_again(lab: Lab, figures: Figures) -> None:
    server = lab["srv-a"]
    with LabDaemon(lab, {"srv-a": 1}) as daemon:
        daemon.up()
        longest, jobs = 0.0, []
        for number in range(REBOOTS):
            job = daemon.run(STARTS)
            jobs.append(job)
            wait_until((server.home / f"ran-{job}").exists, "it runs")
            server.reboot()
            began = time.monotonic()
            after = daemon.run(f"echo {number}")  # needs the slot
            assert daemon.ended(after) == {after: ("completed", 0)}
            longest = max(longest, time.monotonic() - began)
            # Not its own failure: it has an attempt that is lost, and says that the server was rebooted.
            detail = daemon.detail(job)
            assert "reboot" in " ".join([*(attempt.why for attempt in detail.attempts), *detail.notices]), detail
        ran = [(server.home / f"ran-{job}").read_text().count("run") for job in jobs]
        figures.exactly("runs of each job of a rebooted server", ran, [1] * REBOOTS)
        assert {daemon.state(job) for job in jobs} == {"failed"}  # nobody asked for another try
        figures.at_most(f"the slot is used again after a reboot, the longest of {REBOOTS}", longest, 5.0)


@pytest.mark.row("23")
def test_a_killed_agent_is_started_again_and_no_job_notices(lab: Lab, figures: Figures) -> None:
    server = lab["srv-a"]
    with LabDaemon(lab, {"srv-a": 1}) as daemon:
        daemon.up()
        job = daemon.run(STARTS)
        wait_until((server.home / f"ran-{job}").exists, "it runs")
        daemon.until(job, "running")
        seen = set()
        longest = 0.0
        for _ in range(KILLS):
            killed = wait_until(lambda: agents(server), "an agent")
            began = time.monotonic()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda killed=killed: set(agents(server)) - set(killed), "another agent")  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
            wait_until(lambda began=began: daemon.node("srv-a").seen_seconds < time.monotonic() - began, "it was heard")  # type: ignore[misc]
            seen.add((daemon.state(job), daemon.node("srv-a").state))
        figures.at_most(f"another agent after a kill, the longest of {KILLS}", longest, 5.0)
        figures.exactly("states of job and node meanwhile", seen, {("running", "up")})
        (server.home / "go").touch()
        assert daemon.ended(job) == {job: ("failed", 7)}
        assert (server.home / f"ran-{job}").read_text() == "run\n"
        (server.home / "go").unlink()
