"""`gpq doctor --gpu` as a command. It prints every line whatever the server lacks, and nothing stops the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpq_agent import wire

from gpq.cli.doctor import gpu_checks
from gpq.cli.doctor.gpu_checks import GpuCheck
from gpq.views.checkup import gpu_lines

STUB = Path(__file__).resolve().parents[2] / "fakes" / "libnvml" / "nvml.c"
NAMES = [name for part in wire.GPU_PARTS.values() for name in part.names]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a server whose NVML is the stub."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(STUB)], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
    return {**clean, "GPQ_HOME": str(tmp_path / "home"), "LD_LIBRARY_PATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


def doctor(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpq", "doctor", "--gpu", "--python", sys.executable, *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)


def test_each_line_is_skipped_with_a_reason_without_a_gpu(environ: dict[str, str]) -> None:
    done = doctor({**environ, "X_COUNT": "0"}, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert [check["name"] for check in report["checks"]] == NAMES
    assert {check["verdict"] for check in report["checks"]} == {"SKIP"}
    assert all(check["figure"] for check in report["checks"])


@pytest.mark.parametrize("options", [(), ("--gpu", "--json")])
def test_no_file_of_the_current_folder_is_run(
    environ: dict[str, str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It may be somebody else's repository."""
    place, ran = tmp_path / "repository", tmp_path / "ran"
    place.mkdir()
    for name in ("json", "gpq_agent", "subprocess", "torch"):
        (place / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    gpq = os.path.join(os.path.dirname(sys.executable), "gpq")
    command = [gpq, "doctor", *options]
    subprocess.run(command, env={**environ, "X_COUNT": "0"}, cwd=place, capture_output=True, timeout=280, check=False)
    assert not ran.exists(), ran.read_text()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="needs a machine where CUDA cannot open a GPU")
def test_gpus_that_cuda_cannot_open_fail_and_the_report_continues(environ: dict[str, str]) -> None:
    done = doctor(environ, "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, done.stderr, list(checks)) == (1, "", NAMES)
    passed = {name for name, check in checks.items() if check["verdict"] == "PASS"}
    assert {"persistence", "ECC", "MIG"} <= passed
    assert "2 devices" in checks["looks by NVML"]["figure"], "the time depends on the machine"
    assert passed & set(wire.GPU_PARTS["training"].names) == set(), "nothing may train on the CPU instead"
    assert "cannot use its GPU" in checks["matrix product"]["figure"]
    assert checks["process seen"]["verdict"] == "FAIL"


def test_lines_missing_from_a_part_fail_with_its_last_words() -> None:
    row = {"name": "events", "verdict": "PASS", "figure": "1 ms", "seconds": 2.0}
    made = gpu_checks.complete("kernels", [row], "exit 139: Segmentation fault")
    assert [line.verdict for line in made] == ["FAIL", "FAIL", "PASS"]
    assert made[0].figure == "exit 139: Segmentation fault"


def test_the_text_has_a_heading_for_each_section_and_totals() -> None:
    checks = [
        GpuCheck("gpu1", "A", "ECC", "PASS", "0 errors", 0.1), GpuCheck("gpu1", "B", "events", "FAIL", "-10%\x1b[31m", 1.0),
    ]  # fmt: skip
    assert gpu_lines(checks, 80) == [
        "gpu1 A: driver", "PASS  ECC     0 errors", "", "gpu1 B: one replica", "FAIL  events  -10%\\x1b[31m", "",
        "1 PASS, 1 FAIL, 0 SKIP",
    ]  # fmt: skip
