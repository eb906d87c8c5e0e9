"""One way in is every way in: whatever way a program is submitted, gpq does the same for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Gpq
from tests.support.waiting import wait_until

# Prints less than a buffer holds, and then hangs. It reads a variable that stays behind.
PROGRAM = """
import json, os, time
if os.environ.get("RANK", "0") == "0":
    print(json.dumps(dict(os.environ)))
    token = os.environ.get("HF_TOKEN")
time.sleep(600)
"""
API = "import gpq; print('job', gpq.submit({}).id)"
WAYS = {
    "script": ("submit", "--gpus", "1", "train.py"),
    "interpreter": ("submit", "--gpus", "1", "--python", sys.executable, "train.py"),
    "replicas": ("submit", "--gpus", "2", "train.py"),
    "torchrun": ("submit", "--gpus", "2", "--launcher", "torchrun", "train.py"),
    "command": ("submit", "--", "python3", "train.py"),
    "wrapper": ("submit", "--", "./wrapper.sh"),
    "shell": ("submit", "--", "bash", "-c", "python3 train.py; true"),
    "preemptible": ("submit", "--preemptible", "--", "python3", "train.py"),
    "array": ("submit", "--array", "0", "--", "python3", "train.py"),
    "array of scripts": ("submit", "--gpus", "1", "--array", "0", "train.py"),
    "wrap": ("submit", "--wrap", "python3 train.py"),
    "sbatch": ("submit", "slurm.sh"),
    "own lines": ("submit", "own.sh"),
    "import": ("import", "slurm", "--submit", "slurm.sh"),
    "python script": (sys.executable, "-c", API.format("'train.py', gpus=1")),
    "python command": (sys.executable, "-c", API.format("command=['python3', 'train.py']")),
}  # fmt: skip
# What belongs to one way: a name or the beginning of names, and why.
OWN = {
    "GPQ_": "numbers and folders of the job",
    "SLURM": "only scripts with #SBATCH lines get them",
    "PYTHONPATH": "the training library, for scripts",
    **dict.fromkeys(("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_"), "replicas"),
    **dict.fromkeys(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "replicas"),
    **dict.fromkeys(("_", "SHLVL", "PWD", "OLDPWD"), "a shell sets them"),
}


@pytest.fixture(scope="module", autouse=True)
def programs(served: Gpq) -> None:
    """In a folder of their own: gpq does not search a home for variables."""
    home = served.home / "project"
    home.mkdir()
    (home / "train.py").write_text(PROGRAM)
    for name, line in {"wrapper.sh": "", "slurm.sh": "#SBATCH --job-name=s", "own.sh": "#GPQ --name own"}.items():
        (home / name).write_text(f"#!/bin/sh\n{line}\npython3 train.py\n")
        (home / name).chmod(0o755)


def submitted(gpq: Gpq, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**gpq.environment, "HF_TOKEN": "hf_secret"}
    if words[0] != sys.executable:
        words = (sys.executable, "-m", "gpq", *words)
    return subprocess.run(
        words, env=environment, cwd=gpq.home / "project", capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_program_has_the_same_around_it_whatever_way_it_is_submitted(queue: Gpq, way: str) -> None:
    """The job never ends, so a line that a buffer holds back never comes."""
    done = submitted(queue, *WAYS[way])
    assert done.returncode == 0, done
    assert "HF_TOKEN is not passed on, but the job seems to use it" in done.stderr
    log = wait_until(lambda: "{" in (text := queue("logs", "@").stdout) and text, "the program's first line")
    environment = json.loads(next(line for line in log.splitlines() if line.startswith("{")))
    given = {name: value for name, value in environment.items() if not name.startswith(tuple(OWN))}
    assert given.pop("TORCHINDUCTOR_CACHE_DIR").endswith("/torchinductor")
    threads = {given.pop(name) for name in list(given) if name.endswith("_NUM_THREADS")}
    assert len(threads) == 1
    given = {name: given[name] for name in given if name not in queue.environment}
    assert given == {
        "CUDA_VISIBLE_DEVICES": "",
        "LOGNAME": environment["LOGNAME"],
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "SHELL": environment["SHELL"],
        "USER": environment["LOGNAME"],
    }
