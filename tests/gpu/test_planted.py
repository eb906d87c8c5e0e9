"""Checks of GPUs that can run on a CPU pass there, and each fails when its defect is planted."""

from __future__ import annotations

import pytest

from . import memory
from .checks import CHECKS
from .conftest import RunCheck
from .processes import CPU, CheckFailed

NEED_GPU = {
    "waits, SGD", "waits, AdamW", "waits, GradScaler", "memory of samples", "NVML and nvidia-smi", "process seen and gone",
}  # fmt: skip
CPUS = [CPU, CPU]
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_on_a_cpu_or_says_why_it_needs_a_gpu(run_check: RunCheck, name: str) -> None:
    result = run_check(name, CPUS)
    assert result.verdict == ("SKIP" if name in NEED_GPU else "PASS"), result
    assert result.figure
    if name.startswith("waits"):
        assert "(0 sampled)" not in result.figure
        assert "in the first 30 steps: 0" in result.figure, "a CPU waits for nothing"


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("other name", "'Other'"),
        ("process of 100 MiB", "2 looks show 100 MiB"),
        ("ghost", "still there 1 s after its kill"),
        ("product off", "a matrix product has an error of 1.0e-03"),
        ("nothing refused", "expected a refusal, but the job runs on cpu"),
        ("events off", "-10.0%"),
        ("hidden wait", "the host waits in"),
        ("weights forgotten", "errors too large"),
        ("noise off", "examples"),
        ("memory unknown", "gpq does not recognise it"),
        ("momentum lost", "weights differ by"),
        ("init fails", "ValueError: planted"),
        ("weights of two forgotten", "errors too large"),
        ("checkpoints lost", " of them different: "),
        ("survivor stays", "both are gone when one raises: 3"),
        ("crash", "killed by signal 11"),
        ("hang", "no answer within"),
    ],
)
def test_a_planted_defect_is_a_fail(run_check: RunCheck, name: str, figure: str) -> None:
    result = run_check(name, CPUS)
    assert (result.verdict, figure in result.figure) == ("FAIL", True), result


def test_looks_at_healthy_gpus_pass(run_check: RunCheck) -> None:
    assert run_check("same looks", CPUS).verdict == "PASS"
    result = run_check("process of 2500 MiB", CPUS)
    assert (result.verdict, "a process with 2500 MiB" in result.figure) == ("PASS", True), result


def test_a_wait_by_design_is_named_and_does_not_fail(run_check: RunCheck) -> None:
    result = run_check("designed wait", CPUS)
    assert (result.verdict, "by design: checks for forgotten state 50" in result.figure) == ("SKIP", True), result


def test_the_memory_of_samples_is_compared_with_that_of_the_gradients() -> None:
    """A CPU does not count its memory by step."""
    mib = 1 << 20
    assert memory.judged({False: 500 * mib, True: 700 * mib}, 100 * mib).startswith("200 MiB more than the 500 MiB")
    with pytest.raises(CheckFailed, match="400 MiB more than"):
        memory.judged({False: 500 * mib, True: 900 * mib}, 100 * mib)
    with pytest.raises(CheckFailed, match="no step was sampled"):
        memory.judged({False: 500 * mib}, 100 * mib)
