"""GPUs that jobs could not use: CUDA tests them alone, on stubs of NVML and of CUDA's library."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.node.harness import NodeAgent, wait_until

FAKES = Path(__file__).resolve().parents[3] / "fakes"
FIRST, SECOND = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in (0, 1))
REFUSED = (
    """echo '{"rank": 0, "error": "UnusableGpu: no", "gpu": "'$GPQ_DEVICES'"}' > $GPQ_RUN_DIR/error.json; exit 1"""
)
ECC, OUT_OF_MEMORY = 214, 2


@pytest.fixture
def node(agent: Callable[..., NodeAgent], tmp_path: Path) -> NodeAgent:
    for name, source in (("libnvidia-ml.so.1", "libnvml/nvml.c"), ("libcuda.so.1", "libcuda/cuda.c")):
        command = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / name), str(FAKES / source)]
        subprocess.run(command, check=True)
    (tmp_path / "locks").mkdir()
    env = {"LD_LIBRARY_PATH": str(tmp_path), "X_CUDA": str(tmp_path / "refusal")}
    return agent("--probe-period", "0.3", "--locks", str(tmp_path / "locks"), env=env)


def refuse(node: NodeAgent, tmp_path: Path, job: int, code: int) -> None:
    """A job says that it could not use the first GPU, which CUDA refuses with `code`. Returns when the GPU has been
    tested."""
    (tmp_path / "refusal").write_text(str(code))
    node.ended(node.start(job, ["sh", "-c", REFUSED], devices=[FIRST]))
    assert state(node) == ("quarantined", f"being tested, because job {job} could not use it")
    wait_until(lambda: "being tested" not in state(node)[1], "the end of the trial")


def state(node: NodeAgent) -> tuple[str, str]:
    """State of the first GPU."""
    news = node.ask("watch", offsets={}, wait=0, seen="")
    [device] = [one for one in news["devices"] if one["id"] == FIRST]
    return device["state"], device["reason"]


def test_a_gpu_that_two_jobs_and_cuda_could_not_use_is_quarantined(node: NodeAgent, tmp_path: Path) -> None:
    refuse(node, tmp_path, 1, ECC)
    assert state(node) == ("ok", ""), "one job may be to blame"
    refuse(node, tmp_path, 2, ECC)
    words = "2 jobs in a row could not use it: CUDA error 214: uncorrectable ECC error encountered"
    assert state(node) == ("quarantined", words)
    assert node.ended(node.start(3, ["true"], devices=[SECOND]))["code"] == 0


@pytest.mark.parametrize("code", [0, OUT_OF_MEMORY])
def test_a_gpu_that_cuda_can_use_is_not_to_blame(node: NodeAgent, tmp_path: Path, code: int) -> None:
    for job, answer in enumerate((ECC, code, ECC), start=1):
        refuse(node, tmp_path, job, answer)
    assert state(node) == ("ok", "")


def test_a_job_that_used_it_in_between_clears_it(node: NodeAgent, tmp_path: Path) -> None:
    refuse(node, tmp_path, 1, ECC)
    assert node.ended(node.start(2, ["true"], devices=[FIRST]))["code"] == 0
    refuse(node, tmp_path, 3, ECC)
    assert state(node) == ("ok", "")


@pytest.mark.parametrize("content", ["", '{"rank": 0, "gp', "[]"])
def test_a_note_truncated_by_a_full_disk_names_no_gpu_and_ends_no_agent(node: NodeAgent, content: str) -> None:
    command = f"printf '%s' '{content}' > $GPQ_RUN_DIR/error.json; exit 1"
    assert node.ended(node.start(1, ["sh", "-c", command], devices=[FIRST]))["code"] == 1
    assert state(node) == ("ok", "")
    assert node.ended(node.start(2, ["true"], devices=[FIRST]))["code"] == 0
