"""Every policy runs the daemon. There are more real jobs than GPUs, they all end, and training is exact."""

from __future__ import annotations

import json
import os

import pytest

from gpq.policies.registry import POLICIES
from tests.e2e.harness import ROOT, Daemon
from tests.e2e.test_training import LONG, train
from tests.support import commands
from tests.support.waiting import wait_until


def status(daemon: Daemon) -> dict[str, object]:
    """What `gpq daemon status` reports about it."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "GPQ_HOME": str(daemon.home)}
    answer: dict[str, object] = json.loads(commands.run(["daemon", "status", "--json"], environment).stdout)
    return answer


EVERYDAY = ("goodput", "fifo")
CASES = [policy if policy in EVERYDAY else pytest.param(policy, marks=pytest.mark.long) for policy in POLICIES]


@pytest.mark.parametrize("policy", CASES)
def test_all_jobs_end_under_the_policy(policy: str) -> None:
    with Daemon(slots=2, policy=policy, interval=1.0, settle_seconds=0.5) as daemon:
        assert status(daemon)["policy"] == policy
        box = daemon.shell("echo box >> ran; while [ ! -e go ]; do sleep 0.05; done")
        job = train(daemon, "trained", size=800, epochs=2, pace=0.0, fixed=False, gpus=2)
        daemon.until(box, "running")
        wait_until(lambda: list(daemon.work.glob("trained.*")), "it trains next to the black box", LONG)
        later = daemon.shell("echo later >> ran")
        (daemon.work / "go").touch()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert detail.job.state == "completed", daemon.log(job, detail.job.attempt)
        assert detail.metrics["gpq_passes"] == detail.metrics["gpq_passes_exact"] >= 2
        assert daemon.ended(box, later) == {box: ("completed", 0), later: ("completed", 0)}
        assert (daemon.work / "ran").read_text() == "box\nlater\n"
