"""Lightning under gpq: forced resizes in mid-epoch leave no trace in weights, counters, callbacks and logs."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import gpq_agent.train as gpq
import pytest
from gpq_agent import wire
from gpq_agent.train.frameworks.versions import FRAMEWORKS, Framework

from tests.agent.node.harness import AGENT_HOME, NodeAgent, sweep
from tests.agent.node.shim.test_leases import acknowledge, leased
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
        # A step that a crash took back comes again.
        for step, line in {line["step"]: line for line in map(json.loads, path.read_text().splitlines())}.items():
            lines[step].append(line)
    return dict(sorted(lines.items()))


def facts(run: Run) -> list[Any]:
    """Of each step: epoch and number in it, learning rate, what the callback has counted, loss scale, and examples."""
    result = []
    for step, lines in steps(run).items():
        same = {(line["epoch"], line["batch"], line["rate"], line["batches"], line["scale"]) for line in lines}
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
    used = Counter((epoch, place) for epoch, *_, places in facts(resized) for place in places)
    assert used == Counter((epoch, place) for epoch in range(2) for place in range(1200))
    assert_same(undisturbed, resized)
    for expected, actual in zip(validations(undisturbed), validations(resized), strict=True):
        assert actual[:2] == expected[:2]
        assert actual[2] == pytest.approx(expected[2], rel=1e-5)
    for name in ("loss_step", "val_loss", "loss_epoch"):
        assert logged(resized, name) == logged(undisturbed, name)
    expected_summary, end = summary(undisturbed), summary(resized)
    assert end.pop("best") == pytest.approx(expected_summary.pop("best"), rel=1e-5)
    assert end == expected_summary


@pytest.fixture(autouse=True)
def single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("tests.agent.train.test_scripts.TOLERANCE", 1e-5)


def resize(job: Run, *attempts: tuple[int, int]) -> None:
    """Attempts on so many replicas, and the steps after which each must stop, 0 for none."""
    for number, (replicas, stop_after) in enumerate(attempts, start=1):
        job.attempt(number, replicas, stop_after)
    assert len(set(job.stops)) == len(attempts) - 1


def test_resizes_in_mid_epoch_leave_no_trace_even_if_early_stopping_ends_the_run(tmp_path: Path) -> None:
    stopped = {"epochs": 9, "patience": 3, "ema": True}
    undisturbed = run(tmp_path / "undisturbed", batch=20, gpus=2, trainer={"val_check_interval": 15}, **stopped)
    resized = run(tmp_path / "resized", batch=20, trainer={"val_check_interval": 15}, **stopped)
    undisturbed.attempt(1, replicas=1)
    resize(resized, (2, 7), (1, 15), (3, 17), (2, 0))

    assert summary(resized)["wait"] == 3
    assert summary(resized)["steps"] == 60
    compare(undisturbed, resized)
    for job, number in ((undisturbed, 1), (resized, 4)):
        assert (job.folder / f"attempt-{number}" / wire.FINISHED).exists()
    assert resized.habits == undisturbed.habits == set()
    assert undisturbed.notices == []
    assert resized.notices == ["the mean over this epoch of loss starts again at the restart"] * 3


def test_a_resized_run_has_the_weights_of_plain_lightning(tmp_path: Path) -> None:
    common = {"shuffle": False, "schedule": "epoch", "Scaled": True}
    clipped = {"gradient_clip_val": 0.05}
    plain = run(tmp_path / "plain", batch=40, plain=True, trainer={**clipped, "val_check_interval": 10}, **common)
    accumulated = {**clipped, "accumulate_grad_batches": 2, "val_check_interval": 20}
    resized = run(tmp_path / "resized", batch=20, trainer=accumulated, **common)
    plain.attempt(1, replicas=1)
    resize(resized, (1, 11), (3, 25), (2, 0))

    assert len(validations(plain)) == 6
    assert len({json.dumps(line["scale"]) for lines in steps(plain).values() for line in lines}) > 2
    compare(plain, resized)


def test_a_batch_that_grows_ends_each_schedule_and_epoch_exactly(tmp_path: Path) -> None:
    common = {"batch": 10, "gpus": 2, "noise": 3.0, "epochs": 4}
    fixed = run(tmp_path / "fixed", **common)
    grown = run(tmp_path / "grown", max_batch_size=80, terminate={"1": 50}, **common)
    fixed.attempt(1, replicas=1)
    with pytest.raises(AssertionError, match=r"\[143\] == \[0\]"):
        grown.attempt(1, replicas=1)
    grown.attempt(2, replicas=2)

    lines = [step[0] for step in steps(grown).values()]
    sizes = [len(places) for *_, places in facts(grown)]
    assert max(sizes) == 80
    assert len(steps(fixed)) == 240 > len(sizes) == summary(grown)["steps"]
    assert [line["place"] for line in lines] == [int(line["worth"] + 1e-9) for line in lines]
    assert lines[-1]["place"] == summary(fixed)["total"] == summary(grown)["total"] == 240
    ends = {line["epoch"]: line["worth"] for line in lines}
    assert [int((worth + 1e-9) // 60) for worth in ends.values()] == [1, 2, 3, 4]
    assert next(line["step"] for line in lines if line["attempt"] == 2) == 51
    order = [place for *_, places in facts(grown) for place in places]
    for first in range(0, len(order) - 1200, 1200):
        assert sorted(order[first : first + 1200]) == list(range(1200))
    assert [line[:2] for line in validations(grown)] == [
        [epoch, max(line["step"] for line in lines if line["epoch"] == epoch)] for epoch in range(4)
    ]
    assert validations(grown)[-1][2] == pytest.approx(validations(fixed)[-1][2], rel=0.05)
    assert grown.habits == set()


def test_groups_of_batch_norm_and_accumulation_leave_no_trace_of_resizes(tmp_path: Path) -> None:
    accumulated = {"norm": 10, "trainer": {"accumulate_grad_batches": 2}}
    undisturbed, resized = (run(tmp_path / name, batch=20, **accumulated) for name in ("undisturbed", "resized"))
    undisturbed.attempt(1, replicas=1)
    resize(resized, (1, 11), (3, 25), (2, 0))

    compare(undisturbed, resized)
    assert resized.habits == set()


def lose_lease(job: Run, attempt: int) -> None:
    """Under an agent that hears of no daemon, from Lightning's own save on."""
    spool = job.folder / "spool"
    node = NodeAgent(spool, "--slots", "1", "--locks", str(job.folder))
    try:
        env = {wire.ENV_CHECKPOINT_DIR: str(job.folder / "checkpoints"), "PYTHONPATH": f"{AGENT_HOME}:."}
        argv = [sys.executable, job.script, str(job.out)]
        key = leased(node, 1, argv, attempt=attempt, env=env, cwd=str(Path.cwd()))
        stamp = acknowledge(node)
        while not list(job.folder.rglob("*.ckpt")):
            stamp = acknowledge(node, stamp)
        assert node.ended(key)["fenced"]
    finally:
        node.close()
        sweep(spool)


def test_whatever_ends_an_attempt_in_a_save_leaves_no_trace(tmp_path: Path) -> None:
    harms = {"3": "kill", "4": "full disk", "5": "lease", "6": "term"}  # in Lightning's own save
    undisturbed = run(tmp_path / "undisturbed")
    harmed = run(tmp_path / "harmed", Fragile=harms, terminate={"1": 7, "2": 9})
    undisturbed.attempt(1, replicas=1)
    for attempt, code in enumerate((143, -9, -9, 1, None, 143), start=1):
        if code is None:
            lose_lease(harmed, attempt)
        else:
            with pytest.raises(AssertionError, match=rf"\[{code}\] == \[0\]"):
                harmed.attempt(attempt, replicas=1)
        for half in () if attempt == 6 else harmed.folder.rglob("*.ckpt"):
            half.unlink()
    harmed.attempt(7, replicas=1)

    stops = {path.parent.name: wire.read_json(str(path)) for path in harmed.folder.glob(f"*/{wire.STOPPED}")}
    assert {name: stop and stop["step"] for name, stop in stops.items()} == {"attempt-1": 7, "attempt-6": 30}
    assert "cannot write a checkpoint: " in (harmed.folder / "attempt-2" / wire.REPORT).read_text()
    assert facts(harmed) == facts(undisturbed)
    assert_same(undisturbed, harmed)
    assert summary(harmed) == summary(undisturbed)


def test_a_loss_that_is_no_mean_and_a_last_step_with_less_are_told(tmp_path: Path) -> None:
    job = run(
        tmp_path / "job",
        batch=70,
        gpus=2,
        reduction="sum",
        epochs=1,
        forgetful=True,
        trainer={"accumulate_grad_batches": 2},
    )
    job.attempt(1, replicas=2)

    assert job.habits == {"mean"}
    assert job.notices == [
        "the last step of an epoch has 80 examples and takes the mean over them",
        "the callback Forgetful starts over at each restart. To keep what it counts, give it state_dict() and"
        " load_state_dict()",
    ]


def test_a_run_that_was_over_trains_no_more(tmp_path: Path) -> None:
    job = run(tmp_path / "job")
    job.attempt(1, replicas=1)
    weights, lines = job.weights(), facts(job)
    job.attempt(2, replicas=2)

    assert facts(job) == lines
    assert all(bool((weights[name] == value).all()) for name, value in job.weights().items())
    assert (job.folder / "attempt-2" / wire.FINISHED).exists()


def test_what_cannot_be_resized_is_refused_with_a_hint(tmp_path: Path) -> None:
    command = [sys.executable, str(FIT.with_name("lightning_refusals.py")), str(tmp_path / "words")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": "agent"}, capture_output=True)
    words = dict(map(json.loads, (tmp_path / "words").read_text().splitlines()))

    assert len(words) == 20
    for case, text in words.items():
        assert re.fullmatch(r"gpq cannot resize a training with .+\nhint: .+", text), case


@pytest.mark.parametrize(("folder", "expected"), [("", "2.6.6"), ("frameworks-before", "2.6.5")])
def test_both_versions_have_the_private_names(folder: str, expected: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FIT.with_name("lightning_names.py")), str(tmp_path)]
    places = ["agent", *([str(Path(sys.prefix) / folder)] if folder else [])]
    environment = {**os.environ, "PYTHONPATH": ":".join(places)}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    version, missing = json.loads(done.stdout.splitlines()[-1])

    assert version == expected
    assert missing == []


def test_an_untested_version_runs_untouched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FRAMEWORKS, "lightning", Framework(("1.0",), ()))

    assert gpq.lightning() == {}
    assert "was tested with lightning 1.0" in capsys.readouterr().err
