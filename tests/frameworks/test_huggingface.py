"""Hugging Face's Trainer with one changed line: forced resizes in mid-epoch leave it as it trains alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gpq_agent.train.loop import boundary

from tests.agent.train.driver import DEADLINE, FORKSERVER
from tests.agent.train.test_scripts import Run as ScriptRun
from tests.agent.train.test_scripts import order_to_stop

FOLDER = Path(__file__).parent / "scripts"
TOLERANCE = 1e-5  # relative to the norm of each tensor. Half of it is what plain runs with other micro-batches differ
FORKSERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "gpq_agent.train.frameworks.huggingface", "trl.trainer.sft_trainer", __name__]
)
BATCH = "a step has 48 examples on any number of GPUs (12 at once x 2 accumulated x 2 GPUs now)"


def replica(environment: Mapping[str, str], script: str, out: str, stop_after: int) -> None:
    """Main function of a forked process: run the script as if started, and order a stop after this many steps."""
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    vars(boundary).update(AGREE_SECONDS=0.0)
    if stop_after and environment.get("RANK", "0") == "0":
        order_to_stop(environment, stop_after)
    sys.argv = [script, out]
    runpy.run_path(script, run_name="__main__")


class Run(ScriptRun):
    replica = staticmethod(replica)

    def plain(self) -> None:
        """Run it without gpq, in one process."""
        process = FORKSERVER.Process(target=replica, args=({}, self.script, str(self.out), 0))
        process.start()
        process.join(DEADLINE)
        assert process.exitcode == 0

    def steps(self) -> list[tuple[float, list[int]]]:
        """Learning rate and examples of each step, over all attempts and replicas."""
        lines: dict[int, tuple[float, list[int]]] = {}
        for path in sorted(self.folder.glob("weights.steps.*")):
            for line in map(json.loads, path.read_text().splitlines()):
                rate, examples = lines.setdefault(line["step"], (line["rate"], []))
                assert rate == line["rate"]
                examples += line["examples"]
        assert sorted(lines) == list(range(1, len(lines) + 1))
        return [(rate, sorted(examples)) for _, (rate, examples) in sorted(lines.items())]

    def log(self) -> list[dict[str, float]]:
        """What the Trainer logged, without times."""
        history, *place = json.loads(Path(f"{self.out}.log").read_text())
        clocks = ("runtime", "per_second", "flos")
        kept = [{key: value for key, value in line.items() if not key.endswith(clocks)} for line in history]
        return [*kept, {"global_step": place[0], "epoch": place[1]}]


def resize(name: str, folder: Path, *attempts: tuple[int, int]) -> tuple[Run, Run]:
    """Without gpq, and in attempts of (replicas, steps until an ordered stop). Both must train the same."""
    plain, resized = Run(folder / "plain", FOLDER / f"{name}.py"), Run(folder / "resized", FOLDER / f"{name}.py")
    plain.plain()
    for number, (replicas, stop_after) in enumerate(attempts, start=1):
        resized.attempt(number, replicas, stop_after)
    weights = resized.weights()
    for key, value in plain.weights().items():
        error = (weights[key] - value).norm() / value.norm().clamp_min(1e-12)
        assert error < TOLERANCE, f"{key} after stops at {resized.stops}"
    assert plain.steps() == resized.steps()
    for expected, line in zip(plain.log(), resized.log(), strict=True):
        assert line == pytest.approx(expected, rel=1e-4)
    return plain, resized


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_resizes_leave_a_language_model_as_it_trains_alone(tmp_path: Path) -> None:
    _, resized = resize("hf_lm", tmp_path, (2, 8), (1, 9), (3, 20), (2, 0))

    assert resized.stops == [10, 19, 40]
    assert resized.notices == [BATCH]
    assert not resized.habits
    used = Counter(example for _, examples in resized.steps() for example in examples)
    assert used == Counter({example: 2 for example in range(1200)})
    assert len(list((tmp_path / "resized" / "weights.output" / "runs").iterdir())) == 1, "one run of TensorBoard"


def test_lora(tmp_path: Path) -> None:
    resize("hf_lora", tmp_path, (2, 8), (3, 0))


def test_sft(tmp_path: Path) -> None:
    resize("hf_sft", tmp_path, (2, 8), (1, 0))


def test_dpo(tmp_path: Path) -> None:
    resize("hf_dpo", tmp_path, (2, 8), (1, 0))


def test_classifier(tmp_path: Path) -> None:
    _, resized = resize("hf_classifier", tmp_path, (2, 3), (1, 4), (3, 4), (2, 0))
    print(resized.stops, resized.log(), resized.notices, resized.habits)
    assert 0
