"""The benchmark of real trainings: what it measures of a resize, its tables, and one small run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.real.page import mean_time, page, worst_ratio
from benchmarks.real.records import Gain, JobRecord, RunRecord, Sample, append, gains, read
from benchmarks.real.run import play
from benchmarks.real.workloads import folds

ROOT = Path(__file__).resolve().parents[2]
CURVE = {1: 100.0, 2: 180.0}


def looks(attempt: int, gpus: int, begin: float, speed: float, progress: float) -> list[Sample]:
    """Ten looks, one per second. The first three see a job that has made no step yet."""
    return [Sample(begin + second, attempt, gpus, progress + speed * max(second - 2, 0), CURVE) for second in range(10)]


def run(policy: str, repetition: int, *seconds: float, restarts: int = 0) -> RunRecord:
    gain = [Gain(1, 2, 2.0, 0.5)] * restarts
    jobs = [JobRecord(name, time, True, 0.1, restarts, 0.01, gain) for name, time in zip("abc", seconds, strict=False)]
    return RunRecord(policy, repetition, "c0ffee", "2026-11-28", 0.5, jobs)


def test_a_resize_promises_what_the_model_says_and_measures_speed_without_the_pause() -> None:
    samples = looks(1, 1, 0, 0.01, 0.0) + looks(2, 2, 20, 0.015, 0.07)
    [gain] = gains(samples)
    assert (gain.before, gain.after) == (1, 2)
    assert gain.promised == pytest.approx(1.8)
    assert gain.measured == pytest.approx(1.5)


def test_a_restart_on_as_many_gpus_is_no_resize() -> None:
    assert gains(looks(1, 1, 0, 0.01, 0.0) + looks(2, 1, 20, 0.01, 0.07)) == []


def test_an_attempt_that_is_over_too_soon_has_no_measured_gain() -> None:
    [gain] = gains(looks(1, 1, 0, 0.01, 0.0) + looks(2, 2, 20, 0.015, 0.07)[:5])
    assert (gain.promised, gain.measured) == (pytest.approx(1.8), None)


def test_figures_are_medians_over_repetitions() -> None:
    quick = [run("goodput", index, *times) for index, times in enumerate(((8, 2), (6, 2), (90, 2)))]
    slow = [run("fifo", index, *times) for index, times in enumerate(((4, 6), (5, 5), (6, 4)))]
    assert mean_time(quick) == 5
    assert worst_ratio(quick, slow) == (8 / 5, "a")


def test_the_page_compares_goodput_with_the_best_fixed_policy() -> None:
    text = page(
        [run("goodput", 0, 10, 10, restarts=2), run("fifo", 0, 20, 20), run("backfill", 0, 5, 15)],
        "two slots",
    )
    assert "`goodput` is 1.00 of that under the best fixed policy, `backfill`" in " ".join(text.split())
    assert "| goodput | 10.0 | 10.0 | 0.50 (b) | 0.200 | 4 | 0.020 | 4 | 2.00 | 0.50 of 4 | 2 of 2 |" in text


def test_records_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "real.jsonl"
    records = [run("goodput", 0, 10, restarts=1), run("fifo", 0, 20)]
    assert list(read(file)) == []
    for record in records:
        append(file, record)
    assert list(read(file)) == records


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--policies", "fifo,fair"], "unknown fair: use goodput, "),
        (["--repetitions", "0"], "--repetitions must be at least 1"),
    ],
)
def test_bad_options_are_refused(options: Sequence[str], line: str) -> None:
    argv = [sys.executable, "-m", "benchmarks.real", *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert line in done.stderr


def test_runs_of_another_commit_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "real.jsonl"
    append(file, run("fifo", 0, 20))
    argv = [sys.executable, "-m", "benchmarks.real", "--records", str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "has runs of c0ffee" in done.stderr


def test_a_run_measures_real_commands_on_two_slots() -> None:
    jobs = play("backfill", [folds(0, "one", 10), folds(1, "two", 10, gpus=2)])
    assert [(job.name, job.reached, job.restarts) for job in jobs] == [("one", True, 0), ("two", True, 0)]
    assert all(0 < job.gpu_hours <= 2 * job.seconds / 3600 for job in jobs)
