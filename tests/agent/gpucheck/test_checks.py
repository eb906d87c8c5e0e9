"""The checks of `gpq doctor --gpu` that can run on a CPU pass there, and each fails when its defect is planted."""

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
from gpq_agent.gpucheck import checks, memory
from gpq_agent.gpucheck.processes import CheckFailed

ROOTS = [str(Path(__file__).parents[3]), str(Path(gpq_agent.__file__).parents[1])]
NEED_CUDA = {"waits, SGD", "waits, AdamW", "waits, GradScaler", "memory of samples"}
HEALTHY = [name for part in checks.CHECKS.values() for name in part]
Made = Callable[[str], wire.GpuLine]


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """Runs the check with this name, planted or not, in a fork of one interpreter that has imported torch."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
    env = {**clean, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.agent.gpucheck.planted"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def make(name: str) -> wire.GpuLine:
            questions.write(name + "\n")
            questions.flush()
            return wire.GpuLine(**json.loads(answers.readline()))

        yield make
        questions.close()


def test_every_announced_check_exists() -> None:
    announced = {part: facts.names for part, facts in wire.GPU_PARTS.items() if part in checks.CHECKS}
    assert announced == {part: tuple(names) for part, names in checks.CHECKS.items()}
    assert set(wire.GPU_PARTS) - set(checks.CHECKS) == {"driver", "holder"}, "these need no torch of their own"
    assert all(part.limit < 120 for part in wire.GPU_PARTS.values()), "an errand takes two minutes at most"


@pytest.mark.parametrize("name", HEALTHY)
def test_a_check_passes_on_a_cpu_or_says_why_it_needs_a_gpu(made: Made, name: str) -> None:
    line = made(name)
    assert line.verdict == ("SKIP" if name in NEED_CUDA else "PASS"), line
    assert line.figure
    if name.startswith("waits"):
        assert "(0 sampled)" not in line.figure
        assert "in the first 30 steps: 0" in line.figure, "a CPU waits for nothing"


@pytest.mark.parametrize(
    ("name", "figure"),
    [
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
        ("hang", "no answer within 1 s"),
    ],
)
def test_a_planted_defect_is_a_fail(made: Made, name: str, figure: str) -> None:
    line = made(name)
    assert (line.verdict, figure in line.figure) == ("FAIL", True), line


def test_a_wait_by_design_is_named_and_does_not_fail(made: Made) -> None:
    line = made("designed wait")
    assert (line.verdict, "by design: checks for forgotten state 50" in line.figure) == ("SKIP", True), line


def test_the_memory_of_samples_is_compared_with_that_of_the_gradients() -> None:
    """A CPU does not count its memory by step."""
    mib = 1 << 20
    assert memory.judged({False: 500 * mib, True: 700 * mib}, 100 * mib).startswith("200 MiB more than the 500 MiB")
    with pytest.raises(CheckFailed, match="400 MiB more than"):
        memory.judged({False: 500 * mib, True: 900 * mib}, 100 * mib)
    with pytest.raises(CheckFailed, match="no step was sampled"):
        memory.judged({False: 500 * mib}, 100 * mib)
