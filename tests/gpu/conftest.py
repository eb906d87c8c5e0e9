"""What tests of GPUs share: a process that makes checks, and the GPUs that nobody uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gpq_agent
import pytest
from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.devices import looking as devices
from gpq_agent.node.doctor import gpu_report

from .checks import Outcome

ROOTS = [str(Path(__file__).parents[2]), str(Path(gpq_agent.__file__).parents[1])]
RunCheck = Callable[[str, list[str]], Outcome]


@pytest.fixture(scope="session")
def run_check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunCheck]:
    """Makes the check or plant with this name on these devices."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
    env = {
        **clean,
        wire.ENV_TRIAL: "1",
        "TMPDIR": str(tmp_path_factory.mktemp("gpu")),
        "PYTHONPATH": os.pathsep.join(ROOTS),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.gpu"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, outcomes = process.stdin, process.stdout

        def run(name: str, devices: list[str]) -> Outcome:
            orders.write(json.dumps({"name": name, "devices": devices}) + "\n")
            orders.flush()
            return Outcome(*json.loads(outcomes.readline()))

        yield run
        orders.close()


@pytest.fixture(scope="session")
def gpus() -> Iterator[list[str]]:
    """UUIDs of the GPUs that nobody uses. No gpq starts a job on them before the tests end."""
    probe = devices.probe(devices.binding())
    if not probe.gpus:
        pytest.skip(probe.error or probe.notice or "no NVIDIA GPU here")
    free, facts = gpu_report.free_gpus([gpu._asdict() for gpu in probe.gpus])
    if not free:
        pytest.skip(gpu_report.over_gpus("trial", list(facts.items()), lambda judgement: judgement).figure)
    yield list(free)
    gpu_locks.close([lock for locks in free.values() for lock in locks])
