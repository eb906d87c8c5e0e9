"""Scripts of Accelerate with gpq's three lines: resizes in mid-epoch change nothing of what they train."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.train.frameworks.versions import FRAMEWORKS

from tests.agent.train.driver import DEADLINE
from tests.agent.train.test_scripts import Run

SCRIPTS = Path(__file__).parent / "scripts"
BEFORE = Path(sys.prefix) / "frameworks-before"
TOLERANCE = 1e-5  # relative to the norm of each tensor, in single precision
SETTINGS = {
    "gpq": True,
    "accumulation": 2,
    "loader": {"batch_size": 10},
    "most": None,  # the largest batch that gpq may use
    "scale": 0,  # of a GradScaler
    "harm": {},  # by attempt, in the midst of a save
    "batch_norm": None,
    "path": [],
}


class AcceleratedRun(Run):
    """All attempts of one job. `settings`: of the script."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, SCRIPTS / "accelerated.py")
        Path(f"{self.out}.settings").write_text(json.dumps({**SETTINGS, **settings}))

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        """What this rank wrote in each step of an optimizer."""
        return [json.loads(line) for line in Path(f"{self.out}.steps.{rank}").read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(Path(f"{self.out}.summary").read_text())
        return summary


def assert_same(expected: AcceleratedRun, actual: AcceleratedRun) -> None:
    """Both trained the same weights, with the same losses and the same end of the schedule."""
    weights = actual.weights()
    for name, value in expected.weights().items():
        difference = (weights[name] - value).double().norm()
        assert difference <= TOLERANCE * value.double().norm(), f"{name} after {actual.stops}"
    assert actual.summary()["losses"] == pytest.approx(expected.summary()["losses"], rel=TOLERANCE)
    assert actual.summary()["rate"] == expected.summary()["rate"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_resizes_train_what_accelerate_alone_trains_on_the_processes_of_the_first_attempt(tmp_path: Path) -> None:
    alone, resized = AcceleratedRun(tmp_path / "alone", gpq=False), AcceleratedRun(tmp_path / "resized")
    unmanaged = AcceleratedRun(tmp_path / "unmanaged")
    for run in (alone, unmanaged):
        run.launch(2, {})  # as torchrun does
    for number, (replicas, stop_after) in enumerate([(2, 11), (1, 9), (3, 20), (2, 0)], start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(set(resized.stops)) == 3
    assert_same(alone, resized)
    assert_same(alone, unmanaged)
    assert alone.summary()["version"] == resized.summary()["version"]
    for expected, actual in zip(alone.steps(), resized.steps(), strict=True):
        assert actual["rate"] == expected["rate"]
        assert sorted(actual["gathered"]) == sorted(expected["gathered"])
    uses = Counter(number for rank in range(3) for step in resized.steps(rank) for number in step["trained"])
    assert uses == Counter(dict.fromkeys(range(1200), 2))
    assert not resized.habits
    lines = Counter(line.split(",")[0] for line in resized.notices)
    assert lines == {"accelerator.num_processes stays 2": 2, "the job resumes from gpq's checkpoint": 1}


def test_harm_in_a_save_of_accelerate_resumes_from_gpqs_checkpoint_with_its_scaler_and_workers(tmp_path: Path) -> None:
    settings = {
        "path": [str(BEFORE)],  # with the versions before
        "scale": 2.0**127,  # so the first steps overflow and are skipped
        "loader": {"batch_size": 16, "shuffle": True, "num_workers": 2, "persistent_workers": True},
    }
    harm = {"2": "kill", "3": "lost lease", "4": "full disk", "5": "stop"}
    undisturbed = AcceleratedRun(tmp_path / "undisturbed", **settings)
    resized = AcceleratedRun(tmp_path / "resized", harm=harm, **settings)
    undisturbed.attempt(1, replicas=1)
    resized.attempt(1, replicas=1, stop_after=10)
    for number, code in enumerate((-9, -9, 1, 143), start=2):
        with pytest.raises(AssertionError, match=rf"\[{code}\] =="):
            resized.attempt(number, replicas=1)
    resized.attempt(6, replicas=3, stop_after=12)
    resized.attempt(7, replicas=2)

    assert_same(undisturbed, resized)
    assert ".".join(resized.summary()["version"].split(".")[:2]) == FRAMEWORKS["accelerate"].versions[0]
    assert 60 < len(undisturbed.steps()) < 76
    assert resized.summary()["progress"] == len(undisturbed.steps())
    assert resized.summary()["saves"] == [f"checkpoint_{number}" for number in range(5)]
    lines = Counter(line.split(",")[0] for line in resized.notices)
    assert lines.pop("the job resumes from gpq's checkpoint") == 2
    assert "its 16 examples" in undisturbed.notices[0]
    assert set(lines) == {*undisturbed.notices, "accelerator.num_processes stays 1"}


def test_groups_of_batch_norm_train_what_one_process_trains(tmp_path: Path) -> None:
    undisturbed = AcceleratedRun(tmp_path / "undisturbed", batch_norm=5)
    resized = AcceleratedRun(tmp_path / "resized", batch_norm=5)
    undisturbed.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate([(1, 11), (3, 9), (2, 0)], start=1):
        resized.attempt(number, replicas, stop_after)

    assert_same(undisturbed, resized)
    assert not resized.habits


def test_a_batch_that_grows_ends_the_schedule_at_its_last_step(tmp_path: Path) -> None:
    run = AcceleratedRun(tmp_path / "run", most=80)
    run.attempt(1, replicas=1)

    sizes = [len(step["trained"]) for step in run.steps()]
    assert sizes[-2] == 40
    assert 60 <= len(sizes) <= 120, "how many depends on the noise that was measured by then"
    assert run.summary()["rate"] == 0.0
    assert not run.habits


REFUSALS = [
    "gpq cannot resize a training with dispatch_batches=True",
    "gpq cannot resize a training with split_batches=True",
    "gpq cannot resize a training with sync_with_dataloader=False",
    "gpq cannot resize a training with step_scheduler_with_optimizer=False",
    "gpq cannot resize a training with a communication hook of DDP",
    "gpq cannot resize a training with a sharded model (FSDP)",
    "gpus=0 is below 1 or no integer",
    "accelerator.prepare() got no training data",
    "gpq cannot resize a training with an IterableDataset",
    "gpq cannot resize a training with a batch_sampler",
    "only a later loader that accelerator.prepare() was given is shuffled",
    "a loop over the training data is outside its epochs",
    "gpq cannot resize a training with LocalSGD, whose averages over the processes depend on their number",
    "gpq cannot resize a training with skip_first_batches()",
    "gpq cannot resize a training with next() on the loader, which counts batches of one number of GPUs",
    "optimizer.step() was called outside the loop over job.loader()",
    "the checkpoint is of an earlier gpq, and does not say how many GPUs a step is for",
]
MEANT_FOR = "each step has the batch of 2 GPUs in all attempts, the smallest --gpus at the first start"


def test_what_gpq_cannot_resize_is_refused_in_a_line_and_an_untested_version_stays_as_it_is() -> None:
    command = [sys.executable, str(SCRIPTS / "unaccelerated.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert result.stdout.splitlines() == REFUSALS
    assert MEANT_FOR in result.stderr
    assert "this gpq was tested with accelerate 0.1, not with" in result.stderr
