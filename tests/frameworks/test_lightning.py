"""Lightning under gpq: forced resizes in mid-epoch leave no trace in weights, counters, callbacks and logs."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.agent.train.driver import FORKSERVER
from tests.agent.train.test_scripts import Run, assert_same

FIT = Path(__file__).parent / "scripts" / "lightning_fit.py"
FORKSERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "gpq_agent.train", "lightning.pytorch", "tests.agent.train.test_scripts"]
)
START = """
import os, runpy, torch

torch.set_default_dtype(torch.float32)
os.environ["FIT"] = {options!r}
runpy.run_path({script!r}, run_name="__main__")
"""


def run(folder: Path, **options: Any) -> Run:
    folder.mkdir()
    script = folder / "start.py"
    script.write_text(START.format(options=json.dumps(options), script=str(FIT)))
    return Run(folder, script)


def steps(run: Run) -> dict[int, list[dict[str, Any]]]:
    """What all replicas wrote, by step."""
    lines = defaultdict(list)
    for path in run.folder.glob("weights.steps.*"):
        for line in map(json.loads, path.read_text().splitlines()):
            lines[line["step"]].append(line)
    return dict(sorted(lines.items()))


def facts(run: Run) -> list[Any]:
    """Of each step: its epoch and number in it, learning rate, what the callback has counted, and its examples."""
    result = []
    for step, lines in steps(run).items():
        same = {(line["epoch"], line["batch"], line["rate"], line["batches"]) for line in lines}
        assert len(same) == 1, step
        result.append((*same.pop(), sorted(place for line in lines for part in line["seen"] for place in part)))
    return result


def validations(run: Run) -> list[Any]:
    return [json.loads(line) for line in Path(f"{run.out}.validations").read_text().splitlines()]


def logged(run: Run, name: str) -> list[str]:
    (path,) = run.folder.glob("lightning_logs/version_*/metrics.csv")
    with path.open(newline="") as stream:
        return [row["step"] for row in csv.DictReader(stream) if row.get(name)]


def summary(run: Run) -> Any:
    return json.loads(Path(f"{run.out}.summary").read_text())


def compare(undisturbed: Run, resized: Run) -> None:
    for expected, fact in zip(facts(undisturbed), facts(resized), strict=True):
        assert fact == expected
    used = Counter((epoch, place) for epoch, _, _, _, places in facts(resized) for place in places)
    assert used == Counter((epoch, place) for epoch in range(2) for place in range(1200))
    assert_same(undisturbed, resized)
    for expected, one in zip(validations(undisturbed), validations(resized), strict=True):
        assert one[:2] == expected[:2]
        assert one[2] == pytest.approx(expected[2], rel=1e-5)
    for name in ("loss_step", "val_loss", "loss_epoch"):
        assert logged(resized, name) == logged(undisturbed, name)
    expected_summary, end = summary(undisturbed), summary(resized)
    assert end.pop("best") == pytest.approx(expected_summary.pop("best"), rel=1e-5)
    assert end == expected_summary


def test_resizes_in_mid_epoch_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("tests.agent.train.test_scripts.TOLERANCE", 1e-5)
    undisturbed = run(tmp_path / "undisturbed", batch=40)
    resized = run(tmp_path / "resized", batch=20)
    undisturbed.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate([(2, 7), (1, 15), (3, 17), (2, 0)], start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(set(resized.stops)) == 3
    compare(undisturbed, resized)
    assert resized.habits == undisturbed.habits == set()
    assert resized.notices == undisturbed.notices == []


def test_a_resized_run_has_the_weights_of_plain_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("tests.agent.train.test_scripts.TOLERANCE", 1e-5)
    common = {"shuffle": False, "schedule": "epoch"}
    clipped = {"gradient_clip_val": 0.05}
    plain = run(tmp_path / "plain", batch=40, plain=True, trainer={**clipped, "val_check_interval": 10}, **common)
    accumulated = {**clipped, "accumulate_grad_batches": 2, "val_check_interval": 20}
    resized = run(tmp_path / "resized", batch=20, trainer=accumulated, **common)
    plain.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate([(1, 11), (3, 25), (2, 0)], start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(validations(plain)) == 6
    compare(plain, resized)
