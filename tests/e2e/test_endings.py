"""Exit code 0 ends a job only if the job is really done: commands and training scripts under the real daemon."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpq.rpc.job_answers import Changed, Explanation, JobDetail
from gpq.rpc.requests import Hold, Release, Requeue, Why
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

LONG = 150.0  # seconds, because an attempt imports torch and the machine may be busy
DOUBT = "without proof that it had finished"

# Saves at SIGTERM after the current step and exits with 0, like transformers with `enable_jit_checkpoint`. It waits in
# step 5 for a file `go`, and in the last step for `end`. Its argument is code that it runs at its end.
COMMAND = """
import json, os, signal, sys, time
from pathlib import Path

folder, last, told = Path(os.environ["GPQ_CHECKPOINT_DIR"]), 8, []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))

def save(step):
    here = folder / f"checkpoint-{step}"
    here.mkdir(exist_ok=True)
    (here / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": last}))

saved = [int(one.name[11:]) for one in folder.glob("checkpoint-*")]
with open("steps", "a") as steps:
    for step in range(max(saved, default=0) + 1, last + 1):
        steps.write(f"{step}\\n")
        steps.flush()
        while step in (5, last) and not told and not os.path.exists("go" if step == 5 else "end"):
            time.sleep(0.02)
        if told and step < last:
            save(step)
            sys.exit(0)
    while not told and os.path.exists("linger"):
        time.sleep(0.02)
    exec(sys.argv[1])
"""
STEPS = [str(step) for step in range(1, 9)]

HANGS = """
import os, time
import gpq_agent.train as gpq
import torch

job = gpq.init()
data = torch.utils.data.TensorDataset(torch.arange(40), torch.randn(40, 4))
loader = job.loader(data, batch_size=4, fixed_batch=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.prepare(model, optimizer)
rows = open(f"rows.{job.attempt}", "w")
try:
    for epoch in job.epochs(1):
        for index, x in loader:
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.write("".join(f"{one}\\n" for one in index.tolist()))
            while job.step == 5 and not os.path.exists("go") and not job.should_stop():
                open("waits", "w").close()
                time.sleep(0.02)
                break
            time.sleep(0.0 if os.path.exists("go") else 0.5)
finally:
    open(f"in-finally.{job.attempt}", "w").close()
    while job.attempt == 1:
        time.sleep(60)
"""


@pytest.fixture
def daemon():  # type: ignore[no-untyped-def]
    with Daemon(slots=1, interval=1.0) as one:
        yield one


def begin(daemon: Daemon, at_end: str = "", **more: object) -> int:
    """Starts the preemptible command, which then takes five steps."""
    (daemon.work / "program.py").write_text(COMMAND)
    job = daemon.submit(sys.executable, "program.py", at_end, level="signal", **more)
    wait_until(lambda: "5" in steps(daemon), "its fifth step")
    return job


def steps(daemon: Daemon) -> list[str]:
    path: Path = daemon.work / "steps"
    return path.read_text().split() if path.exists() else []


def outcomes(detail: JobDetail) -> list[str]:
    return [one.outcome for one in detail.attempts]


def test_a_job_that_saves_and_exits_with_0_is_requeued_and_finishes(daemon: Daemon) -> None:
    job = begin(daemon)
    daemon.call(Requeue([str(job)]), Changed)
    wait_until(lambda: daemon.detail(job).job.attempt == 2, "its second attempt")
    assert DOUBT in " ".join(daemon.call(Why(str(job)), Explanation).notes)
    (daemon.work / "go").touch()
    (daemon.work / "end").touch()
    detail = daemon.until(job, "completed", "failed")
    assert detail.job.state == "completed"
    assert steps(daemon) == STEPS, "the job resumed from its checkpoint and repeated no step"
    assert outcomes(detail) == ["exit 0, queued again (requeue)", "succeeded"]
    assert any(DOUBT in line and "--done-file PATH" in line for line in detail.notices), detail.notices
    assert any(
        DOUBT in one.text and one.text.count("queues it again") == 1 for one in detail.history if one.kind == "Stopped"
    )


def test_a_job_that_is_held_repeatedly_resumes_each_time(daemon: Daemon) -> None:
    job = begin(daemon)
    for _ in range(2):
        daemon.call(Hold([str(job)]), Changed)
        daemon.until(job, "held")
        (daemon.work / "go").touch()
        before = len(steps(daemon))
        daemon.call(Release([str(job)]), Changed)
        wait_until(lambda before=before: len(steps(daemon)) > before, "it resumes")
        wait_until(lambda: steps(daemon)[-1] == "8", "its last step")
    (daemon.work / "end").touch()
    assert daemon.ended(job) == {job: ("completed", 0)}
    assert steps(daemon) == [*STEPS, *STEPS[5:]], "it reached its end during the second stop but did not say so"


@pytest.mark.parametrize(
    ("at_end", "said"),
    [
        ('open(os.environ["GPQ_DONE_FILE"], "w").close()', "its done file was written"),
        ("save(last)", "the newest trainer_state.json is at its last step"),
        ("", ""),
    ],
)
def test_a_job_that_finished_during_the_stop_is_completed_if_it_says_so(daemon: Daemon, at_end: str, said: str) -> None:
    (daemon.work / "linger").touch()
    (daemon.work / "go").touch()
    (daemon.work / "end").touch()
    job = begin(daemon, at_end, done_file="out.safetensors")
    wait_until(lambda: steps(daemon) == STEPS, "its last step")
    daemon.call(Requeue([str(job)]), Changed)
    wait_until(
        lambda: daemon.state(job) == "completed" or daemon.detail(job).job.attempt == 2, "the first one has ended"
    )
    (daemon.work / "linger").unlink()
    detail = daemon.until(job, "completed", "failed")
    assert detail.job.state == "completed"
    if said:
        assert outcomes(detail) == ["succeeded (requeue)"]
        assert detail.notices[-1].endswith(f"it had finished when gpq asked it to stop: {said}")
        assert any(one.text.endswith(said) for one in detail.history if one.kind == "Succeeded")
    else:
        assert outcomes(detail) == ["exit 0, queued again (requeue)", "succeeded"]


def test_a_job_stopped_by_its_time_limit_is_not_completed(daemon: Daemon) -> None:
    job = begin(daemon, time_limit=3.0)
    detail = daemon.until(job, "completed", "failed", "timeout")
    assert detail.job.state == "timeout"
    assert any(DOUBT in line for line in detail.notices), detail.notices


def test_a_job_whose_finally_block_hangs_is_killed_after_its_grace_and_counts_as_stopped(daemon: Daemon) -> None:
    (daemon.work / "train.py").write_text(HANGS)
    job = daemon.submit("train.py", level="script", grace=3.0)
    wait_until((daemon.work / "waits").exists, "its fifth step", LONG)
    daemon.call(Requeue([str(job)]), Changed)
    wait_until((daemon.work / "in-finally.1").exists, "its finally block", LONG)
    (daemon.work / "go").touch()
    detail = daemon.until(job, "completed", "failed", patience=LONG)
    assert detail.job.state == "completed", daemon.log(job, detail.job.attempt)
    assert outcomes(detail) == ["stopped (requeue)", "succeeded"]
    rows = [(daemon.work / f"rows.{attempt}").read_text().split() for attempt in (1, 2)]
    assert len(rows[0]) >= 20, "the rows were written before"
    assert sorted(map(int, rows[0] + rows[1])) == list(range(40))
