"""`gpq doctor --gpu` on a server: the real nvidia-ml-py, on compiled stubs of NVML and CUDA with a planted defect."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.devices.gpu_probe import RawGpu
from gpq_agent.node.doctor import errand_process, gpu_facts, gpu_report

from tests.agent.node.harness import wait_until

FAKES = Path(__file__).resolve().parents[3] / "fakes"
FIRST, SECOND = (f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in (0, 1))
TORCH = {"torch": "2.11.0", "cuda": "13.0", "python": "3.12.0", "architectures": ["sm_80", "sm_90"]}
Plant = Callable[..., None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libnvml")
    source = FAKES / "libnvml" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


@pytest.fixture
def plant(library: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Two healthy GPUs for every process that starts, except for what is planted: plant(X_ECC=1)."""

    def planted(**what: object) -> None:
        for name, value in what.items():
            monkeypatch.setenv(name, str(value))

    planted(LD_LIBRARY_PATH=library)
    return planted


def facts() -> dict[str, object]:
    return errand_process.run([sys.executable, "-m", gpu_facts.__name__], dict(os.environ), 30.0)


def verdicts(mps: list[int] | None = None, torch: dict[str, object] | None = None) -> dict[str, wire.GpuLine]:
    made = gpu_report.of_facts(facts(), torch or TORCH, mps or [])
    return {line.name: line for line in made}


def test_two_healthy_gpus_pass(plant: Plant) -> None:
    made = verdicts()
    assert {name: line.verdict for name, line in made.items()} == dict.fromkeys(made, "PASS")
    assert "driver 580.159 for CUDA 13.0" in made["versions"].figure
    assert made["idle memory"].figure == "GPU 0, 1: 601 MiB by v1, 1 MiB by v2, 600 MiB reserved"
    assert {line.fix for line in made.values()} == {""}


@pytest.mark.parametrize(
    ("name", "defect", "figure"),
    [
        ("persistence", {"X_PERSISTENCE": 0}, "off: every look"),
        ("idle memory", {"X_USED": 900}, "900 MiB by v2"),
        ("MIG", {"X_MIG": 1}, "without a device"),
        ("compute mode", {"X_MODE": 2}, "prohibited"),
        ("recovery action", {"X_RECOVERY": 1}, "asks for a reset"),
        ("ECC", {"X_ECC": 3}, "3 uncorrectable"),
        ("remapped rows", {"X_PENDING": 1}, "a reset is needed"),
        ("remapped rows", {"X_FAILED": 1}, "one remap failed"),
        ("architectures", {"X_MAJOR": 12}, "needs sm_120"),
        ("versions", {"X_CUDA": 12080}, "too old for torch"),
        ("ECC", {"X_HANDLE": 15}, "GPU 1: GPU is lost"),
        ("persistence", {"X_INIT": 999}, "NVML: Unknown Error"),
    ],
)
def test_a_planted_defect_is_a_fail(plant: Plant, name: str, defect: dict[str, int], figure: str) -> None:
    plant(**defect)
    line = verdicts()[name]
    assert (line.verdict, figure in line.figure) == ("FAIL", True), line
    assert line.fix


@pytest.mark.parametrize(("name", "variable"), [("graphics", "X_DRAWS"), ("MPS", "X_MPS")])
def test_processes_that_draw_or_share_are_named(plant: Plant, tmp_path: Path, name: str, variable: str) -> None:
    (tmp_path / "pids").write_text(f"{os.getpid()} 64\n")
    plant(**{variable: tmp_path / "pids"})
    line = verdicts()[name]
    assert (line.verdict, str(os.getpid()) in line.figure) == ("PASS", True)


def test_an_mps_server_is_recognised_by_its_name(plant: Plant, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-server"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([str(program), "60"]) as process:
        try:
            wait_until(lambda: process.pid in gpu_report.mps_servers(), "the name of the process")
        finally:
            process.kill()
    assert f"server {process.pid}" in verdicts(mps=[process.pid])["MPS"].figure


def test_what_a_gpu_does_not_know_is_skipped(plant: Plant) -> None:
    plant(X_NO_ECC=3)
    assert verdicts()["ECC"] == wire.GpuLine("ECC", "SKIP", "GPU 0, 1: Not Supported")
    made = verdicts(torch={"error": "exit 1: ModuleNotFoundError: No module named 'torch'"})
    assert (made["versions"].verdict, made["architectures"].verdict) == ("SKIP", "SKIP")
    assert verdicts(torch={**TORCH, "cuda": ""})["versions"].verdict == "FAIL", (
        "a torch for CPUs on a machine with GPUs"
    )


@pytest.mark.parametrize(
    ("architecture", "able"),
    [("sm_80", True), ("sm_89", False), ("sm_90", False), ("compute_80", True), ("sm_90a", False), ("", False)],
)
def test_which_kernels_run_on_which_gpu(architecture: str, able: bool) -> None:
    assert gpu_report.runs_on([architecture], 8, 6) is able


@pytest.fixture
def trial(plant: Plant, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., wire.GpuLine]:
    """trial(214, X_CUDA_GPU=SECOND): what the line says if CUDA answers with this code."""
    source = FAKES / "libcuda" / "cuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    monkeypatch.setattr(gpu_locks, "FOLDERS", (str(tmp_path),))

    def tried(code: int = 0, **what: object) -> wire.GpuLine:
        (tmp_path / "refusal").write_text(str(code))
        plant(LD_LIBRARY_PATH=f"{library}:{tmp_path}", X_CUDA=tmp_path / "refusal", **what)
        return gpu_report.trial()

    return tried


Trial = Callable[..., wire.GpuLine]


def test_cuda_tries_each_gpu(trial: Trial) -> None:
    line = trial()
    assert line[:3] == ("trial", "PASS", "GPU 0, 1: CUDA wrote to its memory")
    line = trial(214, X_CUDA_GPU=SECOND)
    refusal = "CUDA error 214: uncorrectable ECC error encountered"
    assert line[:3] == ("trial", "FAIL", f"GPU 0: CUDA wrote to its memory; GPU 1: {refusal}")
    assert "xid" in line.fix


def test_a_gpu_that_is_in_use_proves_nothing(trial: Trial, tmp_path: Path) -> None:
    assert trial(46).verdict == "SKIP", "another process has it, in an exclusive mode"
    (tmp_path / "pids").write_text(f"{os.getpid()} 64\n")
    line = trial(X_PIDS=tmp_path / "pids")
    assert (line.verdict, line.figure) == ("PASS", f"GPU 0: pid {os.getpid()} uses it; GPU 1: CUDA wrote to its memory")


def test_a_cuda_that_hangs_is_a_fail(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "TRIAL_LIMIT", 5.0)
    line = trial(-60, X_CUDA_GPU=FIRST)
    assert (line.verdict, line.figure.partition(";")[0]) == ("FAIL", "GPU 0: CUDA did not answer within 5 s")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a library of CUDA")
def test_a_missing_library_of_cuda_is_a_fail(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_locks, "FOLDERS", (str(tmp_path),))
    line = gpu_report.trial()
    assert (line.verdict, "GPU 0, 1: libcuda.so.1" in line.figure, line.fix) == ("FAIL", True, gpu_report.LIBRARY_FIX)


def test_a_lost_gpu_is_a_fail_and_the_other_is_tried(trial: Trial) -> None:
    line = trial(X_HANDLE=15)
    assert line.verdict == "FAIL"
    assert (
        line.figure
        == "GPU 1: the GPU is lost (it fell off the bus): reboot this server; GPU 0: CUDA wrote to its memory"
    )


@pytest.mark.parametrize(
    ("defect", "verdict", "figure"),
    [({"X_COUNT": 0}, "SKIP", "no NVIDIA GPU here"), ({"X_RUN": 999}, "FAIL", "NVML: Unknown Error")],
)
def test_without_a_gpu_there_is_no_trial(plant: Plant, defect: dict[str, int], verdict: str, figure: str) -> None:
    plant(**defect)
    line = gpu_report.trial()
    assert (line.verdict, figure in line.figure) == (verdict, True), line


def test_gpus_that_somebody_uses_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_locks, "FOLDERS", (str(tmp_path),))

    def seen(used: int = 600, *pids: int, problem: str = "") -> list[dict[str, object]]:
        gpu = RawGpu(FIRST, 0, "Stub", 81920, used, 0, [(pid, 5) for pid in pids], problem)
        return [gpu._asdict()]

    free, facts = gpu_report.free_gpus(seen())
    assert (list(free), facts) == ([FIRST], {})
    _, facts = gpu_report.free_gpus(seen())
    assert "held by" in facts[FIRST]["unsupported"], "two reports do not share one"
    gpu_locks.close(free[FIRST])
    assert gpu_report.free_gpus(seen(600, 77)) == ({}, {FIRST: {"unsupported": "pid 77 uses it"}})
    assert gpu_report.free_gpus(seen(20000)) == ({}, {FIRST: {"unsupported": "20000 MiB are in use"}})
    assert gpu_report.free_gpus(seen(problem="lost")) == ({}, {FIRST: {"error": "lost"}})


def test_a_missing_torch_is_not_a_fault_of_the_gpu(plant: Plant, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    plant(X_COUNT=2)
    made = {line.name: line for line in gpu_report.lines(str(python), dict(os.environ))}
    assert (made["versions"].verdict, made["ECC"].verdict) == ("SKIP", "PASS")
    assert "No module named 'torch'" in made["versions"].figure
