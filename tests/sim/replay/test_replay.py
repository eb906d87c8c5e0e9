"""The physics of a simulated run compared with sums done by hand, its two clocks, and that the seed decides all luck."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.core.model.profile import Habit
from gpq.errors import Refused
from gpq.lab.measurements.sources import Charges, Published
from gpq.lab.simulator.outcomes import JobOutcome, Outcome
from gpq.lab.simulator.replay import replay
from gpq.lab.simulator.rules import Rules, parse_cluster
from tests.support.measurements import tiny, workload

EPOCH = 84.0  # seconds for 1000 base steps on one GPU
LENGTH = 3 * EPOCH
RESTART = 30.0
ROOT = Path(__file__).resolve().parents[3]


def run(
    folder: Path, policy: str, nodes: str, *rows: str, charges: Charges | None = None, **rules: object
) -> dict[str, JobOutcome]:
    """Outcomes by name. Jobs run the applications `tiny` and `short` (a tenth of it)."""
    traces = tiny(folder / "traces")
    tiny(traces, "short", steps=100)
    source = Published("w", str(workload(folder / "w.csv", *rows)), str(traces), charges or Charges())
    outcome = replay(policy, source.tasks(), Rules(parse_cluster(nodes), **rules))  # type: ignore[arg-type]
    return {job.name: job for job in outcome.jobs}


def test_a_lone_job_takes_a_round_plus_its_start_plus_its_steps(tmp_path: Path) -> None:
    job = run(tmp_path, "fifo", "2x4", "a,0,tiny,1,32")["a"]
    assert (job.started_at, job.ended_at, job.restarts) == (60.0, 60.0 + RESTART + LENGTH, 0)
    assert job.gpu_seconds == RESTART + LENGTH
    assert job.sizes == ((60.0, 1), (job.ended_at, 0))


def test_a_larger_batch_on_more_gpus_is_worth_its_gain_and_epochs_end_on_whole_seconds(tmp_path: Path) -> None:
    # 32 examples on each of three GPUs of two servers: 114 ms. Noise scales of 4, 8 and 12 base batch sizes: gains of
    # 15/7, 27/11 and 13/5. 53.2, 46.4 and 43.8 seconds per epoch.
    job = run(tmp_path, "fifo", "3x2", "a,0,tiny,3,96")["a"]
    assert job.ended_at == 60.0 + RESTART + 53 + 46 + 44
    assert job.gpu_seconds == 3 * (RESTART + 143)


def test_a_stopped_job_pays_for_another_start_and_keeps_its_progress(tmp_path: Path) -> None:
    # b, which is shorter, arrives in the middle. It gets the GPU at the next tick, and a gets it back at the tick after
    # the end of b.
    jobs = run(tmp_path, "srtf", "1x1", "a,0,tiny,1,32", "b,100,short,1,32")
    assert jobs["b"].sizes == ((120.0, 1), (120.0 + RESTART + 3 * 8, 0))
    ran = 120.0 - 60.0 - RESTART
    end = 180.0 + RESTART + LENGTH - ran
    assert jobs["a"].sizes == ((60.0, 1), (120.0, 0), (180.0, 1), (end, 0))
    assert (jobs["a"].restarts, jobs["b"].restarts) == (1, 0)
    assert jobs["a"].gpu_seconds == 2 * RESTART + LENGTH


@pytest.mark.parametrize("policy", ["srtf", "optimus", "gavel"])
def test_policies_learn_the_times_of_the_only_gpu_type(tmp_path: Path, policy: str) -> None:
    """Shapes name no type if there is only one, although files and machines do."""
    traces = tiny(tmp_path / "traces", kinds=("dgx-ext",))
    source = Published("w", str(workload(tmp_path / "w.csv", "a,0,tiny,2,64", "b,0,tiny,1,32")), str(traces))
    jobs = replay(policy, source.tasks(), Rules(parse_cluster("1x4:a100"))).jobs
    alike = replay(policy, source.tasks(), Rules(parse_cluster("1x4:dgx-ext"))).jobs
    assert [job.sizes for job in jobs] == [job.sizes for job in alike]
    assert jobs[0].started_at == 60.0


def test_a_start_costs_the_charge_of_its_application(tmp_path: Path) -> None:
    charges = Charges(restarts=(("tiny", 50.0),), slowdowns=(("short", 1.5),))
    jobs = run(tmp_path, "fifo", "1x2", "a,0,tiny,1,32", "b,0,short,1,32", charges=charges)
    assert jobs["a"].ended_at == 60.0 + 50.0 + LENGTH
    assert jobs["b"].ended_at == 60.0 + RESTART + 3 * 13  # 8.4 s x 1.5 per epoch


def test_the_timer_acts_at_the_tick_and_events_at_once(tmp_path: Path) -> None:
    rows = ("a,7,tiny,1,32", "b,8,tiny,1,32")  # one after the other
    ticks = run(tmp_path, "fifo", "1x1", *rows, interval=45.0)
    assert [job.started_at for job in ticks.values()] == [45.0, 360.0]  # a ends at 327
    events = run(tmp_path, "fifo", "1x1", *rows, interval=45.0, events=True)
    assert events["a"].started_at == 7.0
    assert events["b"].started_at == events["a"].ended_at == 7.0 + RESTART + LENGTH


def test_a_fixed_batch_size_leaves_each_gpu_a_measured_batch(tmp_path: Path) -> None:
    # Eight GPUs would have four of the 32 examples each, but the measurements start at eight per GPU.
    job = run(tmp_path, "slaq", "2x4", "a,0,tiny,1,32")["a"]
    assert max(gpus for _, gpus in job.sizes) == 4


def test_a_job_that_fits_no_server_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^fifo gives no GPUs to big: no node of this cluster fits") as caught:
        run(tmp_path, "fifo", "2x4", "a,0,short,1,32", "big,0,tiny,9,256")
    assert "\n" not in caught.value.message
    assert caught.value.hint


def goodput(folder: Path, seed: int, noise: float) -> dict[str, JobOutcome]:
    return run(folder, "goodput", "2x4", "a,0,tiny,1,32", "b,30,tiny,2,64", "c,45,short,4,128", seed=seed, noise=noise)


def test_the_seed_decides_the_errors_of_measurements(tmp_path: Path) -> None:
    noisy = [goodput(tmp_path, seed, 0.5) for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1]
    assert noisy[0] != noisy[2]
    assert goodput(tmp_path, 1, 0.0) == goodput(tmp_path, 2, 0.0)


def figures(folder: Path, policies: str) -> list[Outcome]:
    """The run of the default workload, without the figures that come from this machine's clock."""
    source = Published("w", str(workload(folder / "w.csv")), str(tiny(folder / "traces")))
    rules = Rules(parse_cluster("2x4"), noise=0.1, seed=3)
    found = [replay(policy, source.tasks(), rules) for policy in policies.split(",")]
    return [replace(outcome, round_seconds=(), wall_seconds=0.0) for outcome in found]


def test_the_same_seed_gives_the_same_run_in_every_process(tmp_path: Path) -> None:
    policies = "goodput,pollux,sia,gavel,optimus"
    program = "import sys, pathlib; from tests.sim.replay.test_replay import figures; "
    program += "sys.stdout.write(repr(figures(pathlib.Path(sys.argv[1]), sys.argv[2])))"
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
        command = [sys.executable, "-c", program, str(tmp_path), policies]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] == repr(figures(tmp_path, policies))


@pytest.mark.parametrize("policy", ["goodput", "slaq", "srtf"])
def test_habits_of_a_trace_are_respected(tmp_path: Path, policy: str) -> None:
    """Batches of 256, and a GPU holds 128 at once. There are as many jobs as GPUs, so each would have one at first."""
    traces = tiny(tmp_path / "traces")
    rows = ("a,0,tiny,1,256", "b,0,tiny,1,256", "c,0,tiny,1,256", "d,0,tiny,1,256")
    tasks = Published("w", str(workload(tmp_path / "w.csv", *rows)), str(traces)).tasks()

    def sizes(*freedoms: str) -> set[int]:
        strict = replace(tasks[0], habits=(Habit("a-habit", freedoms),) if freedoms else ())
        jobs = replay(policy, [strict, *tasks[1:]], Rules(parse_cluster("1x4"), interval=20.0)).jobs
        return {gpus for _, gpus in jobs[0].sizes if gpus}

    assert 1 in sizes()
    assert sizes("resize") == {1}
    if policy == "slaq":  # goodput starts with another batch size than the job asked for, and a gang has no choice
        assert min(sizes("accumulate")) == 2


def test_growths_bring_what_they_promised_if_the_model_is_right(tmp_path: Path) -> None:
    rows = ("a,0,tiny,1,32", "b,100,tiny,1,32", "c,500,tiny,2,32")
    jobs = run(tmp_path, "goodput", "1x4", *rows, events=True, charges=Charges(restart=5.0))
    promised = sum(job.growths.promised for job in jobs.values())
    gained = sum(job.growths.measured for job in jobs.values())
    assert promised > 0
    assert gained == pytest.approx(promised, rel=0.15)
    assert all(job.growths.promised == 0.0 for job in run(tmp_path, "fifo", "1x4", *rows).values())
