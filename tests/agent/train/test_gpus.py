"""A script has GPUs but cannot use them: every replica refuses at once, in torch's words."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.environment import open_device, read_environment

from tests.support.figures import Figures
from tests.support.ports import free_port

from .test_launch import environment

GPU, OTHER = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
LIMIT = 60.0  # seconds for importing torch on a busy machine
SCRIPT = """
import sys
import gpq_agent.train as gpq
job = gpq.init()
open(sys.argv[1] + str(job.rank), "w").write(str(job.device))
"""
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA can be opened here")


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return [str(path), str(tmp_path / "trained.")]


def given(*devices: str, **extra: str) -> dict[str, str]:
    """The environment that the launcher sets for a job with these GPUs."""
    gpus = ",".join(devices)
    return environment(**{wire.ENV_DEVICES: gpus, "CUDA_VISIBLE_DEVICES": gpus, wire.ENV_ATTEMPT: "1", **extra})


def torch_words() -> str:
    """torch's message about CUDA on this machine."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.cuda.init()"], env=given(GPU), capture_output=True, text=True
    )
    return done.stderr.strip().splitlines()[-1].partition(": ")[2]


@without_cuda
def test_a_script_whose_gpu_cannot_be_opened_is_refused(script: list[str], figures: Figures) -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, *script], env=given(GPU), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert f"this replica cannot use its GPU ({GPU}): {torch_words()}" in done.stderr
    assert "hint: gpq does not train on the CPU instead" in done.stderr
    assert not Path(script[1] + "0").exists(), "nothing was trained"
    figures.at_most("from the start to the refusal", time.monotonic() - begun, 30.0)


@without_cuda
def test_each_replica_is_refused_without_waiting_for_the_others(script: list[str]) -> None:
    """Starts the replicas one by one, because torchrun would end the others after the first failure."""
    launched = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in "01":
        env = given(GPU, OTHER, RANK=rank, LOCAL_RANK=rank, **launched)
        done = subprocess.run([sys.executable, *script], env=env, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1
        assert torch_words() in done.stderr
    assert not list(Path(script[0]).parent.glob("trained.*"))


@pytest.mark.parametrize(
    "extra",
    [{}, {wire.ENV_DEVICES: ""}, {wire.ENV_DEVICES: "cpu:0", wire.ENV_CORES: "0"}],
    ids=["without gpq", "no device", "a CPU slot"],
)
@without_cuda
def test_a_script_without_a_gpu_trains_on_the_cpu(script: list[str], extra: Mapping[str, str]) -> None:
    done = subprocess.run([sys.executable, *script], env=environment(**extra), capture_output=True, timeout=LIMIT)
    assert done.returncode == 0
    assert Path(script[1] + "0").read_text() == "cpu"


@without_cuda
def test_a_cpu_slot_without_cores_is_not_a_gpu() -> None:
    assert read_environment({wire.ENV_DEVICES: "cpu:0", wire.ENV_CORES: ""}).gpus == ()
    assert open_device(read_environment({wire.ENV_DEVICES: "cpu:0", wire.ENV_CORES: ""})).type == "cpu"


def test_fewer_gpus_than_replicas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA ignores everything after an unknown GPU name. No test machine has a GPU that it could see."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    launch = read_environment({**launched, wire.ENV_DEVICES: f"{GPU},{OTHER}"})
    assert (launch.local_replicas, launch.gpus) == (2, (GPU, OTHER))
    with pytest.raises(GpqTrainError, match="2 replicas run on this server, but torch sees only 1 of its GPUs"):
        open_device(launch)
