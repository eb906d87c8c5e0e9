"""Two daemons with separate states on one server with GPUs. Neither uses the other's GPUs, and each says whose they
are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent.node.devices.gpu_locks import common_folder

from gpq.rpc.job_answers import CancelResult, Explanation, JobDetail, JobList, JobView
from gpq.rpc.node_answers import NodeList
from gpq.rpc.requests import Cancel, Nodes, Show, Status, Why
from tests.daemon.daemons import Daemon, daemon
from tests.support.figures import Figures
from tests.support.waiting import wait_until

FAKE = Path(__file__).parents[2] / "fakes" / "nvml"


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[list[str]]:
    """Two GPUs of a fake driver, and a Python that uses its NVML."""
    found = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    state = tmp_path / "nvml.json"
    state.write_text(json.dumps({"mode": "ok", "gpus": [{"uuid": name} for name in found]}))
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nFAKE_NVML_STATE={state} PYTHONPATH="{FAKE}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    yield found
    for name in found:
        for path in Path(common_folder()).glob(f"gpq-{name}.*"):
            path.unlink()


def config(tmp_path: Path) -> str:
    return f'policy = "fifo"\ninterval = 1.0\n[nodes.here]\npython = "{tmp_path / "python"}"\nslots = 0\n'


def row(served: Daemon, job: int) -> JobView:
    return served.call(Status([str(job)]), JobList).jobs[0]


def states(served: Daemon) -> dict[str, tuple[str, str]]:
    [node] = served.call(Nodes(), NodeList).nodes
    return {device.id: (device.state, device.reason) for device in node.devices}


def test_a_gpu_of_one_daemon_is_refused_to_the_other_with_its_owner(gpus: list[str], tmp_path: Path) -> None:
    with daemon(tmp_path / "one", config(tmp_path)) as one, daemon(tmp_path / "two", config(tmp_path)) as two:
        for served in (one, two):
            served.wait_for_nodes()
            wait_until(lambda served=served: set(states(served)) == set(gpus), "its GPUs are known")
        first = one.submit("sleep", "300")
        wait_until(lambda: row(one, first).state == "running", "the first job runs")
        [held] = row(one, first).placement[0].devices
        wait_until(lambda: states(two)[held][0] == "foreign", "the other daemon sees it")
        me = re.escape(subprocess.check_output(["id", "-un"], text=True).strip())
        assert re.fullmatch(rf"held by {me}'s gpq \(job {first}, since \d\d:\d\d\)", states(two)[held][1])
        assert states(one)[held] == ("ok", "")
        waits = two.submit("sleep", "300", min_gpus=2)
        said = wait_until(lambda: two.call(Why(str(waits)), Explanation).reasons, "the reason why it waits")
        assert any(re.fullmatch(rf"GPU \d of here is held by {me}'s gpq .*", line) for line in said)
        one.call(Cancel([str(first)]), CancelResult)
        wait_until(lambda: row(two, waits).state == "running", "its turn comes")
        assert {states(one)[name][0] for name in gpus} <= {"foreign", "ok"}


def test_a_start_that_finds_the_lock_held_costs_nothing(gpus: list[str], tmp_path: Path, figures: Figures) -> None:
    """Both request everything at once, again and again. Each GPU belongs to one of them, and no attempt counts as
    failed."""
    with daemon(tmp_path / "one", config(tmp_path)) as one, daemon(tmp_path / "two", config(tmp_path)) as two:
        for served in (one, two):
            served.wait_for_nodes()
            wait_until(lambda served=served: set(states(served)) == set(gpus), "its GPUs are known")
        mark = f"{tmp_path}/busy-$CUDA_VISIBLE_DEVICES"
        script = f"mkdir {mark} && sleep 0.5 && rmdir {mark}"  # fails if another job is there
        jobs = [(served, served.submit("sh", "-c", script)) for _ in range(4) for served in (one, two)]
        wait_until(lambda: all(row(*each).state in ("completed", "failed", "held") for each in jobs), "all are over")
        assert [row(*each).state for each in jobs] == ["completed"] * len(jobs)
        assert not list(tmp_path.glob("busy-*"))
        details = [served.call(Show(str(job)), JobDetail) for served, job in jobs]
        ends = [event.text for each in details for event in each.history if event.kind in ("Stopped", "Failed")]
        figures.exactly("attempts that counted as failed", sum("failed" in line for line in ends), 0)
        figures.note("starts that found a lock held", str(len(ends)))
