"""Hugging Face's Trainer with one changed line: forced resizes in mid-epoch leave it as it trains alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.train.frameworks.versions import FRAMEWORKS
from gpq_agent.train.loop import boundary

from tests.agent.train.driver import DEADLINE, FORKSERVER
from tests.agent.train.test_scripts import Run as ScriptRun
from tests.agent.train.test_scripts import order_to_stop

FOLDER = Path(__file__).parent / "scripts"
BEFORE = Path(sys.prefix) / "frameworks-before"
# Relative to the norm of each tensor. Plain runs that differ only in their micro-batches differ as much.
TOLERANCE = 1e-5
TROUBLE = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "full": 1}  # and the exit code of an attempt
FORKSERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "gpq_agent.train.frameworks.huggingface", "trl.trainer.sft_trainer", __name__]
)


def replica(environment: Mapping[str, str], script: str, out: str, stop_after: int) -> None:
    """Main function of a forked process: run the script as if started, and order a stop after this many steps."""
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    vars(boundary).update(AGREE_SECONDS=0.0)
    if stop_after > 0 and environment.get("RANK", "0") == "0":
        order_to_stop(environment, stop_after)
    sys.argv = [script, out]
    runpy.run_path(script, run_name="__main__")


def run_once(script: Path, out: Path, environment: Mapping[str, str]) -> None:
    process = FORKSERVER.Process(target=replica, args=(environment, str(script), str(out), 0))
    process.start()
    process.join(DEADLINE)
    assert process.exitcode == 0


class Run(ScriptRun):
    replica = staticmethod(replica)

    def steps(self) -> list[tuple[float, list[int]]]:
        """Learning rate and examples of each step, over all attempts and replicas. At the end of an epoch, a replica
        without an example repeats two others, which weigh nothing."""
        lines: dict[int, tuple[float, list[int]]] = {}
        for path in sorted(self.folder.glob("weights.steps.*")):
            for line in map(json.loads, path.read_text().splitlines()):
                rate, examples = lines.setdefault(line["step"], (line["rate"], []))
                assert rate == line["rate"]
                examples += line["examples"]
        assert sorted(lines) == list(range(1, len(lines) + 1))
        return [lines[step] for step in sorted(lines)]

    def log(self, *keys: str) -> list[dict[str, float]]:
        """What the Trainer logged, and where it was at the end. Without `keys`, all but times."""
        history, *place = json.loads(Path(f"{self.out}.log").read_text())
        clocks = ("runtime", "per_second", "flos")
        for line in history:
            for key in list(line):
                if key.endswith(clocks) or (keys and key not in keys):
                    del line[key]
        return [*history, {"global_step": place[0], "epoch": place[1]}]


def assert_same(expected: Run, run: Run, *keys: str) -> None:
    weights = run.weights()
    for key, value in expected.weights().items():
        error = (weights[key] - value).float().norm() / value.float().norm().clamp_min(1e-3)
        assert error < TOLERANCE, f"{key} after stops at {run.stops}"
    for (expected_rate, expected_examples), (rate, examples) in zip(expected.steps(), run.steps(), strict=True):
        assert rate == expected_rate
        assert set(examples) == set(expected_examples)
    for expected_line, line in zip(expected.log(*keys), run.log(*keys), strict=True):
        assert line == pytest.approx(expected_line, rel=1e-4)


def resized(name: str, folder: Path, *attempts: tuple[int, int | str]) -> Run:
    """A job in attempts of replicas and steps until an ordered stop. 0 for none, or trouble in the Trainer's save."""
    run = Run(folder / "resized", FOLDER / f"{name}.py")
    for number, (replicas, stop_after) in enumerate(attempts, start=1):
        if isinstance(stop_after, str):
            Path(f"{run.out}.trouble").write_text(stop_after)
            with pytest.raises(AssertionError, match=rf"\[{TROUBLE[stop_after]}\]"):
                run.attempt(number, replicas)
        else:
            run.attempt(number, replicas, stop_after)
    return run


def plain(name: str, folder: Path) -> Run:
    """Without gpq, in one process with the whole batch at once."""
    run = Run(folder / "plain", FOLDER / f"{name}.py")
    run_once(Path(run.script), run.out, {})
    return run


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_language_model_trains_as_plain_over_two_one_three_and_two_replicas(tmp_path: Path) -> None:
    run = resized("hf_lm", tmp_path, (2, 8), (1, 9), (3, 20), (2, 0))

    assert run.stops == [10, 19, 40]
    assert (run.notices, run.habits) == ([], set())
    used = Counter(example for _, examples in run.steps() for example in examples)
    assert used == Counter(dict.fromkeys(range(1200), 2))
    assert_same(plain("hf_lm", tmp_path), run)
    assert len(list(Path(f"{run.out}.output/runs").iterdir())) == 1, "one run of TensorBoard"


def test_early_stopping_a_scaler_and_an_uneven_end_survive_resizes_and_trouble_in_a_save(tmp_path: Path) -> None:
    run = resized("hf_classifier", tmp_path, (2, 2), (1, "SIGKILL"), (1, "SIGTERM"), (1, "full"), (3, 7), (2, 0))

    expected = plain("hf_classifier", tmp_path)
    assert_same(expected, run)
    assert expected.log()[-1] == {"global_step": 15, "epoch": 3.0}, "it stops early"
    assert run.notices[0].startswith("gpq takes your own loss for a mean over labels")


def test_lora_on_batches_of_like_lengths_ends_at_max_steps_in_mid_epoch(tmp_path: Path) -> None:
    undisturbed = Run(tmp_path / "undisturbed", FOLDER / "hf_lora.py")
    undisturbed.attempt(1, replicas=1)
    assert_same(undisturbed, resized("hf_lora", tmp_path, (1, 8), (3, 0)))
    assert undisturbed.log()[-1]["global_step"] == 31
    assert undisturbed.notices[-2:] == [
        "eval_loss depends a little on the number of GPUs, and so may the best checkpoint: the 7 examples of the"
        " evaluation are no multiple of per_device_eval_batch_size=8",
        "the callback Counts starts over at each restart. To keep what it counts, see ExportableState",
    ]


def test_groups_of_batch_norm_train_the_same_on_any_number_of_replicas(tmp_path: Path) -> None:
    undisturbed = Run(tmp_path / "undisturbed", FOLDER / "hf_growing.py")
    undisturbed.attempt(1, replicas=1)
    assert_same(undisturbed, resized("hf_growing", tmp_path, (2, 8), (3, 9), (1, 0)))
    assert len(undisturbed.steps()) == 50


def test_a_batch_that_grows_ends_its_schedule_exactly_at_its_last_step(tmp_path: Path) -> None:
    fixed, run = Run(tmp_path / "fixed", FOLDER / "hf_growing.py"), Run(tmp_path / "run", FOLDER / "hf_growing.py")
    fixed.attempt(1, replicas=1)
    Path(f"{run.out}.grows").touch()
    run.attempt(1, replicas=1, stop_after=15)
    run.attempt(2, replicas=2)

    steps, gain_sum = run.steps(), 0.0
    applied = map(json.loads, Path(f"{run.out}.rates").read_text().splitlines())
    for (rate, _), applied_rate in zip(steps, applied, strict=True):
        assert rate == pytest.approx(0.1 * (1 - int(gain_sum + 1e-6) / 50)), "the schedule moves by the gain of a step"
        gain_sum += applied_rate / rate
    assert gain_sum == pytest.approx(50)
    assert 25 <= len(steps) < 45
    assert Path(f"{run.out}.output/checkpoint-{len(steps)}").is_dir(), "the last step is saved"
    assert {len(set(examples)) for _, examples in steps[5:]} == {96, 48}, "the end of a pass has half a batch"
    first_pass = [example for _, examples in steps for example in set(examples)][:1200]
    assert sorted(first_pass) == list(range(1200))
    log = run.log("eval_loss")
    losses, expected_losses = (
        [line["eval_loss"] for line in lines if "eval_loss" in line] for lines in (log, fixed.log("eval_loss"))
    )
    assert len(losses) == 2
    assert losses[-1] == pytest.approx(expected_losses[-1], rel=0.05)
    assert log[-1] == {"global_step": len(steps), "epoch": pytest.approx(2.0)}
    assert run.notices == []
    summary = json.loads(Path(f"{run.out}.log").read_text())[0][-1]
    count = summary["train_samples_per_second"] * summary["train_runtime"]
    assert count == pytest.approx(sum(len(set(examples)) for _, examples in steps), rel=0.01)


@pytest.mark.parametrize("name", ["hf_sft", "hf_dpo"])
def test_trl_trains_as_plain(name: str, tmp_path: Path) -> None:
    # Its other metrics are means over micro-batches, however few tokens these have.
    run = resized(name, tmp_path, (2, 8), (1, 0))
    assert_same(plain(name, tmp_path), run, "loss", "grad_norm", "learning_rate", "epoch", "step")
    assert run.habits == ({"label-mean"} if name == "hf_sft" else set())


REFUSALS = """
import sys
import gpq_agent.train as gpq
import torch, transformers

Trainer = gpq.elastic(transformers.Trainer)
assert Trainer is not transformers.Trainer

class Own(transformers.Trainer):
    def get_batch_samples(self, *args):
        raise NotImplementedError

assert gpq.elastic(Own) is Own

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.BatchNorm1d(2)

    def forward(self, x):
        return {"loss": self.layer(x).sum()}

def refusal(options, kind=Trainer, **settings):
    try:
        data = [{"x": torch.zeros(2), "input_ids": [1]}] * 8
        args = transformers.TrainingArguments(sys.argv[1] + ".output", use_cpu=True, report_to="none", **settings)
        kind(Model(), args, train_dataset=data).train(**options)
    except gpq.GpqTrainError as error:
        return error.message
    raise AssertionError("it was not refused")

lines = [
    refusal({}, auto_find_batch_size=True),
    refusal({}, average_tokens_across_devices=False),
    refusal({}, accelerator_config={"split_batches": True}),
    refusal({"resume_from_checkpoint": "out"}),
    refusal({}, train_sampling_strategy="batch_rebalance"),
    refusal({}, kind=gpq.elastic(transformers.Trainer, max_batch_size=64), num_train_epochs=1.5),
    refusal({}),
]
with open(sys.argv[1], "w") as stream:
    stream.write("\\n".join(lines))
"""


def test_what_would_train_something_else_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    environment = {wire.ENV_RUN_DIR: str(tmp_path), wire.ENV_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    script = tmp_path / "refused.py"
    script.write_text(REFUSALS)
    run_once(script, tmp_path / "lines", environment)
    lines = (tmp_path / "lines").read_text().splitlines()
    assert lines == [
        "gpq cannot resize a Trainer with auto_find_batch_size=True",
        "gpq cannot resize a Trainer with average_tokens_across_devices=False",
        "gpq cannot resize a Trainer with split_batches=True",
        "train(resume_from_checkpoint=...) would begin amid another run",
        "gpq cannot resize training on data with a BatchRebalanceSampler",
        "max_batch_size= needs whole epochs and ddp_find_unused_parameters=False",
        "batch norm (layer) computes its statistics on each GPU",
    ]


SOURCES = {
    "Trainer": "transformers/trainer.py", "SFTTrainer": "trl/trainer/sft_trainer.py",
    "DPOTrainer": "trl/trainer/dpo_trainer.py",
}  # fmt: skip


@pytest.mark.parametrize("folder", [Path(sysconfig.get_path("purelib")), BEFORE], ids=["newest", "before"])
def test_private_names_exist_in_both_versions(folder: Path) -> None:
    for framework in ("transformers", "trl"):
        for name in FRAMEWORKS[framework].private:
            kind, attribute = name.split(".")
            text = (folder / SOURCES[kind]).read_text()
            assert f"def {attribute}(" in text or f"self.{attribute} = " in text, name


def test_the_version_before_trains_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path / "before", FOLDER / "hf_classifier.py")
    (tmp_path / "run").mkdir()
    environment = {
        **os.environ, wire.ENV_RUN_DIR: str(tmp_path / "run"), wire.ENV_CHECKPOINT_DIR: str(run.folder / "checkpoints"),
        wire.ENV_ATTEMPT: "1", "ACCUMULATION": "4", "PYTHONPATH": os.pathsep.join([str(BEFORE), *sys.path]),
    }  # fmt: skip
    subprocess.run([sys.executable, run.script, run.out], env=environment, check=True, timeout=DEADLINE)
    assert (tmp_path / "run" / wire.FINISHED).exists(), "gpq drove it"
    assert_same(plain("hf_classifier", tmp_path), run)
