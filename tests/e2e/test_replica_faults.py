"""One of two replicas fails while the other waits for it in a collective. Soon both are gone, and `gpq show` has the
cause."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon
from tests.support.figures import Figures

LONG = 150.0  # seconds, because an attempt of two replicas imports torch three times and the machine may be busy

# Replica 1 fails in its fourth batch, before the backward pass in which replica 0 already waits for it.
SCRIPT = """
import os, signal, sys, time
import gpq_agent.train as gpq
import torch

job = gpq.init()
data = torch.utils.data.TensorDataset(torch.ones(64, 1))
loader = job.loader(data, batch_size=8, fixed_batch=True, num_workers=1)
model = job.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, _ = job.prepare(model, optimizer)
for epoch in job.epochs(3):
    for number, (x,) in enumerate(loader):
        if number == 3:
            with open(f"pid.{job.rank}", "w") as stream:
                stream.write(str(os.getpid()))
            if job.rank == 1:
                while not os.path.exists("pid.0"):
                    time.sleep(0.01)
                with open("fault", "w") as stream:
                    stream.write(str(time.time()))
                FAULT
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FAULTS = {
    "raise ValueError('a bad batch')": "rank 1: ValueError: a bad batch",
    "sys.exit(3)": "rank 1 ended with exit code 3",
    "os.kill(os.getpid(), signal.SIGKILL)": "rank 1 was killed by SIGKILL",
    "raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')": "rank 1: OutOfMemoryError: CUDA",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with Daemon(slots=2, interval=1.0) as one:
        yield one


@pytest.fixture
def daemon(shared: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    with shared.emptied(tmp_path):
        yield shared


@pytest.mark.parametrize("fault", FAULTS, ids=["raises", "exits", "is killed", "out of memory"])
def test_if_one_replica_fails_its_whole_attempt_ends(daemon: Daemon, fault: str, figures: Figures) -> None:
    (daemon.work / "train.py").write_text(SCRIPT.replace("FAULT", fault))
    job = daemon.submit("train.py", level="script", min_gpus=2, max_gpus=2, rigid=True)
    detail = daemon.until(job, "failed", "completed", patience=LONG)
    log = daemon.log(job, 1)
    assert detail.job.state == "failed", log
    assert FAULTS[fault] in " ".join([detail.job.reason, *(one.outcome for one in detail.attempts)]), detail
    pids = [int(path.read_text()) for path in daemon.work.glob("pid.*")]
    assert len(pids) == 2, log
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    ended = datetime.fromisoformat(detail.attempts[0].ended_at or "").timestamp()
    seconds = ended - float((daemon.work / "fault").read_text())
    figures.at_most(f"from the fault to the end of all processes, {fault.partition('(')[0]}", seconds, 15.0)
