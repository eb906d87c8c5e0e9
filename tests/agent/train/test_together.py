"""One replica fails while the others wait for it in a collective. All end, and gpq keeps the first error."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from gpq_agent import wire

from .driver import DEADLINE
from .test_launch import environment, torchrun

# Replica 1 fails in its fourth batch, before the backward pass. By then replica 0 is already in that pass.
SCRIPT = """
import sys
import gpq_agent.train as gpq
import torch

job = gpq.init()
data = torch.utils.data.TensorDataset(torch.ones(64, 1))
loader = job.loader(data, batch_size=8, fixed_batch=True)
model = job.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, _ = job.prepare(model, optimizer)
for epoch in job.epochs(3):
    for number, (x,) in enumerate(loader):
        if job.rank == 1 and number == 3:
            FAULT
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
# Ways to leave a batch out, with the code that a replica runs for it.
SKIPS = {
    "one leaves a step out": "model(x).mean().backward(); optimizer.zero_grad(); continue",
    "all leave a batch out, one of them late": "continue",
}
FAULTS = {
    "raise ValueError('a bad batch')": "ValueError: a bad batch",
    "sys.exit(3)": "",
    "continue": "GpqTrainError: replica 1 waits in a step without backward(), and another one waits for it",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_all_replicas_end_with_the_error_of_the_one_that_failed(tmp_path: Path, fault: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("FAULT", fault))
    gpq = {
        wire.ENV_RUN_DIR: str(tmp_path),
        wire.ENV_CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
        wire.ENV_ATTEMPT: "1",
        wire.ENV_CORES: "0;0",
    }
    run = subprocess.Popen(
        [*torchrun(2), "train.py"], cwd=tmp_path, env=environment(**gpq), stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, text = run.communicate(timeout=DEADLINE)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 1
    if FAULTS[fault]:
        first = wire.read_json(str(tmp_path / wire.FIRST_ERROR))
        assert first is not None
        assert first["rank"] == 1
        assert first["error"].startswith(FAULTS[fault]), text


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("skip", SKIPS)
def test_a_skipped_step_does_not_end_the_training(tmp_path: Path, skip: str, step: int) -> None:
    late = SKIPS[skip] == "continue"
    script = SCRIPT.replace("job.rank == 1 and number == 3", f"number == {step} and ({late} or job.rank == 1)")
    script = script.replace("FAULT", f"time.sleep(0.5 * ({late} and job.rank == 0)); {SKIPS[skip]}")
    # A slow replica must not count as lost just because time passes.
    patience = "import time\nfrom gpq_agent.train.process import agreement\nagreement.MEET_SECONDS = 0.01\n"
    (tmp_path / "train.py").write_text(patience + script)
    gpq = {wire.ENV_RUN_DIR: str(tmp_path), wire.ENV_ATTEMPT: "1", wire.ENV_CORES: "0;0"}
    run = subprocess.run(
        [*torchrun(2), "train.py"], cwd=tmp_path, env=environment(**gpq), stderr=subprocess.PIPE, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    told = "next batch without a backward pass" if late else "a pass of the loop ended without optimizer.step()"
    assert told in run.stderr
