"""The benchmark of real jobs in an emulated lab: its steps, its tables, and one small run that goes on."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from benchmarks.lab.__main__ import main
from benchmarks.lab.kinds import KINDS
from benchmarks.lab.page import page
from benchmarks.lab.run import JobResult, RunResult
from benchmarks.lab.train import Emulator
from benchmarks.lab.workloads import FULL


def job(name: str, seconds: float, *gains: tuple[float, float]) -> JobResult:
    return JobResult(
        name, seconds, 3.0, seconds - 5.0, name != "ncf-b", 1 + len(gains), len(gains), 120.0, 6.0, 0.5, list(gains)
    )


def run(policy: str, jobs: Sequence[JobResult], steps: float = 1.01) -> RunResult:
    return RunResult("lab", policy, "c0ffee", "2026-12-02", 0.5, steps, 0.2, 0.1, 10.0, 2.0, list(jobs))


def test_the_model_of_steps_knows_servers() -> None:
    model = KINDS["bert"].model
    assert model.step(1, 1, 12) == pytest.approx(model.grad(12)) == pytest.approx(0.6 * (0.1735 + 12 * 0.0594))
    assert model.grad(12) < model.step(1, 4, 12) < model.step(2, 4, 12) < model.grad(12) + model.sync(2, 4)


def test_a_step_takes_its_modelled_time() -> None:
    emulator = Emulator(KINDS["tiny"].model, 1, 1)
    for is_last in (False, True):
        emulator.begin(16, is_last=is_last)
        emulator.backward_begins()
        emulator.backward_ends()
        emulator.end()
    times = emulator.times
    assert times.micros == 2
    assert times.modelled == pytest.approx(2 * KINDS["tiny"].model.grad(16))
    assert times.measured >= times.modelled


def test_half_of_a_workload_is_fixed() -> None:
    arrivals = FULL["half-fixed"]
    assert sum(arrival.fixed for arrival in arrivals) == len(arrivals) / 2


def test_a_busy_machine_is_named_and_its_run_is_no_reference() -> None:
    runs = [
        run("fifo", [job("cifar-a", 10.0), job("ncf-b", 20.0)], steps=1.2),
        run("backfill", [job("cifar-a", 30.0), job("ncf-b", 50.0)]),
        run("goodput", [job("cifar-a", 20.0, (2.0, 1.0), (2.0, 4.0)), job("ncf-b", 40.0)]),
    ]
    simulated = {
        policy: {"avg_jct": mean, "rho_max": 0.75}
        for policy, mean in zip(("fifo", "backfill", "goodput"), (44.0, 50.0, 25.0), strict=True)
    }
    text = page({"lab": runs}, {"lab": simulated})
    assert "A job under `goodput` takes 0.75 of its time under `backfill`." in text
    assert "**lab fifo: steps took 1.20 of the model, so the machine was too busy.**" in text
    assert "| fifo | 15.0 | 0.38 | 44.0 | 0.88 | 20 | 20 | 3.0 | 2.0 | 10.0 | 1 of 2 | **1.20, too busy** |" in text
    assert "| goodput | 30.0 | 0.75 | 25.0 | 0.50 | 40 | 40 | 3.0 | 2.0 | 25.0 | 1 of 2 | 1.010 |" in text
    assert (
        "| goodput | 4 | 2 | 4.0 | 0.2 | 10.0 | 2.0 | 0.50 | 0.50 | 0.75 | 2.00 | 2.00 of 2 | 0.100 of 0.200 promised | 50% |"
        in text
    )
    assert "| cifar-a | 10 | 30 | 20 (3) |" in text
    assert "| ncf-b | 20, missed | 50, missed | 40, missed |" in text


@pytest.mark.parametrize(
    ("options", "line"), [(["day"], "unknown day: use lab, "), (["--policies", "fair"], "unknown fair: use goodput, ")]
)
def test_bad_options_are_refused(options: Sequence[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert line in capsys.readouterr().err


def test_runs_of_another_commit_are_not_mixed_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab-fifo").mkdir()
    (tmp_path / "lab-fifo" / "result.json").write_bytes(msgspec.json.encode(run("fifo", [job("cifar-a", 10.0)])))
    assert main(["lab", "--policies", "goodput", "--runs", str(tmp_path)]) == 2
    assert "has runs of c0ffee" in capsys.readouterr().err


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    interrupted, file = tmp_path / "tiny-fifo" / "samples.jsonl", tmp_path / "lab.md"
    interrupted.parent.mkdir()
    interrupted.write_text("half a run\n")
    options = ["tiny", "--runs", str(tmp_path), "--page", str(file), "--policies"]
    main([*options, "fifo"])
    looks = [json.loads(line) for line in interrupted.read_text().splitlines()]
    assert {job["name"] for look in looks for job in look["jobs"]} == {"tiny-a", "command-a"}
    main([*options, "fifo,goodput"])
    assert looks == [json.loads(line) for line in interrupted.read_text().splitlines()]
    times = [json.loads(part.read_text()) for part in tmp_path.glob("tiny-*/times/*.json")]
    assert {part["replicas"] for part in times} >= {2}
    assert sum(part["micros"] for part in times) >= 2 * 12  # steps of a batch that may double
    result = msgspec.json.decode((tmp_path / "tiny-fifo" / "result.json").read_bytes(), type=RunResult)
    training, command = result.jobs
    assert training.reached
    assert command.reached
    assert command.gpu_seconds >= 4.0 > command.seconds - command.wait
    rows = file.read_text().splitlines()
    assert sum(row.startswith(("| fifo |", "| goodput |")) for row in rows) == 6
    assert any(row.startswith(f"| fifo | {statistics.mean((training.seconds, command.seconds)):.1f} |") for row in rows)
