"""A server with an owner. When the owner comes, jobs leave and lose nothing. They return when the owner has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.rpc.job_answers import CancelResult, Explanation, JobList, JobView
from gpq.rpc.node_answers import ErrandResult, NodeList
from gpq.rpc.requests import Cancel, Errand, Nodes, Status, Why
from tests.daemon.daemons import Daemon, daemon
from tests.support.figures import Figures
from tests.support.waiting import wait_until

FAKE = Path(__file__).parents[2] / "fakes" / "nvml"
GRACE = 5.0
# Continues to count where it was. When told to stop it takes some time, then exits with 75 because it will resume.
COUNT = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
place = sys.argv[1]
count = int(open(place).read()) if os.path.exists(place) else 0
while not told:
    count += 1
    with open(place + ".log", "a") as stream:
        stream.write(f"{count}\\n")
    time.sleep(0.02)
with open(place, "w") as stream:
    stream.write(str(count))
sys.exit(75)
"""


class Desk:
    """A server with two GPUs of a fake driver, and its users. It has its own locks, so other tests on this machine
    neither see nor request them."""

    def __init__(self, folder: Path) -> None:
        self.locks = folder / "locks"
        self.locks.mkdir()
        self.names = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
        self.state = folder / "nvml.json"
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\ncase "$*" in "-m gpq_agent.node "*) set -- "$@" --locks {self.locks};; esac\n'
            f'FAKE_NVML_STATE={self.state} PYTHONPATH="{FAKE}:$PYTHONPATH" exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)
        self.work({})

    def work(self, busy: dict[int, int]) -> None:
        """`busy`: pid by index of the GPU that it uses."""
        gpus = [
            {"uuid": name, "utilisation": 0, "processes": [{"pid": busy[place], "mib": 500}] if place in busy else []}
            for place, name in enumerate(self.names)
        ]
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps({"mode": "ok", "gpus": gpus}))
        new.replace(self.state)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def ana() -> Iterator[tuple[str, int]]:
    """Another user with a process: the name and the pid. Needs root to act as that user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to act as another user")
    process = subprocess.Popen(["setpriv", "--reuid=nobody", "--clear-groups", "sleep", "1000"])
    yield "nobody", process.pid
    process.kill()
    process.wait()


def config(desk: Desk, owner: str) -> str:
    return f'policy = "fifo"\ninterval = 3600.0\n[nodes.desk]\nowner = "{owner}"\npython = "{desk.python}"\nslots = 0\n'


def row(served: Daemon, job: int) -> JobView:
    return served.call(Status([str(job)]), JobList).jobs[0]


def gpus(served: Daemon) -> dict[str, str]:
    [node] = served.call(Nodes(), NodeList).nodes
    return {device.id: device.state for device in node.devices}


def counting(served: Daemon, place: Path) -> int:
    return served.submit(sys.executable, "-c", COUNT, str(place), level="signal", grace=GRACE)


def test_an_owner_gets_the_gpus_within_the_grace_and_nothing_is_lost(
    desk: Desk, ana: tuple[str, int], tmp_path: Path, figures: Figures
) -> None:
    name, pid = ana
    with daemon(tmp_path / "home", config(desk, name)) as served:
        served.wait_for_nodes()
        wait_until(lambda: set(gpus(served)) == set(desk.names), "its GPUs are known")
        jobs = [counting(served, tmp_path / f"count-{number}") for number in range(2)]
        wait_until(lambda: all(row(served, job).state == "running" for job in jobs), "both run there")
        [held] = row(served, jobs[0]).placement[0].indices
        began = time.monotonic()
        desk.work({held: pid})  # on a GPU that a job uses
        wait_until(lambda: all(row(served, job).gpus == 0 for job in jobs), "both have left")
        figures.at_most("from the owner's process to free GPUs", time.monotonic() - began, GRACE + 5.0)
        said = served.call(Why(str(jobs[0])), Explanation)
        assert said.headline == "GPUs are reserved"
        assert any(f"server desk belongs to {name}, who uses GPU {held}" in reason for reason in said.reasons)
        desk.work({})
        gone = time.monotonic()
        wait_until(lambda: all(row(served, job).state == "running" for job in jobs), "both are back")
        figures.note("from the end of the owner's process to their return", f"{time.monotonic() - gone:.1f} s")
        [served.call(Cancel([str(job)]), CancelResult) for job in jobs]
        for number in range(2):
            lines = (tmp_path / f"count-{number}.log").read_text().split()
            figures.exactly(
                "counts lost or repeated", [int(one) for one in lines] == list(range(1, len(lines) + 1)), True
            )


def test_a_command_that_cannot_leave_waits_for_another_server(desk: Desk, ana: tuple[str, int], tmp_path: Path) -> None:
    with daemon(tmp_path / "home", config(desk, ana[0])) as served:
        served.wait_for_nodes()
        wait_until(lambda: set(gpus(served)) == set(desk.names), "its GPUs are known")
        fixed, behind = served.submit("sleep", "1000"), served.submit("sleep", "1000", background=True)
        wait_until(lambda: row(served, behind).state == "running", "a job that can leave at once runs")
        assert row(served, fixed).state == "pending"
        said = served.call(Why(str(fixed)), Explanation)
        assert any(
            f"server desk belongs to {ana[0]}. Other users' jobs start there only if they can leave" in one
            for one in said.reasons
        )


def test_an_owner_asks_for_the_server_and_gives_it_back(desk: Desk, tmp_path: Path) -> None:
    me = subprocess.check_output(["id", "-un"], text=True).strip()
    with daemon(tmp_path / "home", config(desk, me)) as served:
        served.wait_for_nodes()
        wait_until(lambda: set(gpus(served)) == set(desk.names), "its GPUs are known")
        asked = served.call(Errand("desk", "yield", {"seconds": 60.0}, 30.0), ErrandResult)
        try:
            assert asked.answer["user"] == me
            assert list(desk.locks.glob("gpq-yield.*"))
            held = wait_until(lambda: served.call(Nodes(), NodeList).reservations, "the daemon honours it")
            assert [(each.user, each.by) for each in held] == [(me, "its owner")]
        finally:
            ended = served.call(Errand("desk", "yield", {}, 30.0), ErrandResult)
        assert ended.answer == {"user": me, "wanted": True}
        wait_until(lambda: not served.call(Nodes(), NodeList).reservations, "it has ended")
    assert not list(desk.locks.glob("gpq-yield.*"))


def test_an_unused_gpu_of_a_job_is_named(desk: Desk, tmp_path: Path) -> None:
    with daemon(tmp_path / "home", f"idle_after = 10\n{config(desk, '')}") as served:
        served.wait_for_nodes()
        wait_until(lambda: set(gpus(served)) == set(desk.names), "its GPUs are known")
        job = served.submit("sleep", "1000")
        wait_until(lambda: row(served, job).state == "running", "it runs")
        [held] = row(served, job).placement[0].indices
        wait_until(
            lambda: row(served, job).reason.startswith(f"has not used GPU {held} of desk for "), "the GPU is named"
        )
