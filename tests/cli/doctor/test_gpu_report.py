"""`gpq doctor --gpu` as a command. It prints every line whatever the server lacks, and nothing stops the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpq.cli.doctor import server_checks
from gpq.cli.doctor.doctor import GPU_VERDICTS, lines
from gpq.options.json_answers import CheckView as Check

STUB = Path(__file__).resolve().parents[2] / "fakes" / "libnvml" / "nvml.c"
NAMES = [
    "versions", "architectures", "persistence", "idle memory", "MIG", "compute mode", "recovery action", "ECC",
    "remapped rows", "MPS", "graphics", "trial",
]  # fmt: skip


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
    assert "libcuda.so.1" in checks["trial"]["figure"]
    assert checks["trial"]["fix"].startswith("install the driver's CUDA library")
    assert (checks["trial"]["node"], checks["trial"]["section"]) == ("", "A")


def test_a_report_that_does_not_come_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'Segmentation fault' >&2; exit 139\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    [line] = server_checks.gpu_report([], str(python), lambda _: None)[""]
    assert line[:3] == ("report", "FAIL", "exit 139: Segmentation fault")
    assert line.fix.startswith("try nvidia-smi")


def test_the_text_has_the_server_the_fix_and_totals() -> None:
    checks = [
        Check("ECC", "PASS", "0 errors", "", "gpu1"), Check("trial", "FAIL", "CUDA error\x1b[31m", "look at it", "gpu1"),
    ]  # fmt: skip
    assert lines(checks, 80, verdicts=GPU_VERDICTS) == [
        "PASS  gpu1 ECC    0 errors", "FAIL  gpu1 trial  CUDA error\\x1b[31m", "                  fix: look at it", "",
        "1 PASS, 1 FAIL, 0 SKIP",
    ]  # fmt: skip
