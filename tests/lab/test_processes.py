"""Reboots of servers, deaths of agents and partitions, with gpq's jobs on them: rows 21 to 23 and 26 of the table of
faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from tests.chaos import servers
from tests.chaos.runs import Measured
from tests.chaos.servers import STARTS
from tests.lab.daemons import LabDaemon
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

REBOOTS = 3
KILLS = 5


@pytest.mark.row("21")
def test_a_reboot_differs_from_a_restart_and_its_slots_are_free_again(lab: Lab, figures: Figures) -> None:
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
            # This is not its own failure. It has a lost attempt, and says that the server was rebooted.
            detail = daemon.detail(job)
            assert "reboot" in " ".join([*(attempt.why for attempt in detail.attempts), *detail.notices]), detail
        ran = [(server.home / f"ran-{job}").read_text().count("run") for job in jobs]
        figures.exactly("runs of each job of a rebooted server", ran, [1] * REBOOTS)
        assert {daemon.state(job) for job in jobs} == {"failed"}  # nobody asked for another try
        figures.at_most(f"the slot is used again after a reboot, slowest of {REBOOTS}", longest, 5.0)


@pytest.mark.row("22")
def test_foreign_processes_with_the_pids_of_dead_ones_are_left_alone(lab: Lab, figures: Figures) -> None:
    figures.all(servers.reboots(2, seed=0, lab=lab))


@pytest.mark.row("23")
def test_a_killed_agent_is_started_again_and_no_job_notices(lab: Lab, figures: Figures) -> None:
    figures.all(servers.agent_kills(KILLS, seed=0, lab=lab))


@pytest.mark.row("26")
def test_in_a_partition_a_job_ends_itself_before_it_lives_elsewhere(lab: Lab, figures: Figures) -> None:
    figures.all(servers.partitions(1, seed=0, lab=lab))


@pytest.mark.row("26")
@pytest.mark.parametrize("run", [servers.partitions_killed, servers.partitions_stopped])
def test_in_a_partition_a_job_ends_itself_even_if_its_supervisor_is_killed_or_hangs(
    lab: Lab, figures: Figures, run: Callable[..., Sequence[Measured]]
) -> None:
    figures.all(run(1, seed=0, lab=lab))
