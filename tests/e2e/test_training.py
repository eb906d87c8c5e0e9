"""Real training under the real daemon. The job grows, shrinks, changes its batch and loses a replica, and the results
are the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs

from gpq.rpc.job_answers import Changed
from gpq.rpc.requests import Edit, Requeue
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

# A round each second, and the first restart costs little.
EAGER: dict[str, Any] = {"interval": 1.0, "settle_seconds": 0.5, "restart_seconds": 1.0}
LONG = 150.0  # seconds, because an attempt of two replicas imports torch three times and the machine may be busy

TRAINING = """
import json, os, sys, time
import gpq_agent.train as gpq
import torch

settings = json.loads(sys.argv[1])
job = gpq.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(settings["size"], 8, generator=generator)
y = x.prod(dim=1, keepdim=True).tanh() + torch.randn(len(x), 1, generator=generator)
data = torch.utils.data.TensorDataset(torch.arange(len(x)), x, y)
fixed = settings["fixed"]
loader = job.loader(data, batch_size=16, max_batch_size=16 if fixed else 64, max_local_batch=128, fixed_batch=fixed)
torch.manual_seed(1)
model = job.wrap(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model, optimizer, _ = job.prepare(model, optimizer)
with open(f"{settings['name']}.{job.attempt}.{job.rank}", "w", buffering=1) as visits:
    for epoch in job.epochs(settings["epochs"]):
        for index, inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            step = job.step
            optimizer.step()
            optimizer.zero_grad()
            seen = index.tolist() if loader.counted else []
            line = [epoch, step, seen, loss.item(), len(index), job.replicas, os.getpid()]
            visits.write(json.dumps(line) + "\\n")
            # As if the model were larger: a part that does not depend on the batch, and one that does.
            time.sleep(settings["pace"] * (0.7 + 0.3 * len(index) / 16))
            if step >= settings["until"] and os.path.exists(settings["name"] + ".slow"):
                time.sleep(0.5)
if job.rank == 0:
    torch.save(getattr(model, "module", model).state_dict(), settings["name"] + ".pt")
"""

OWN_LOOP = """
import json, os, time
import gpq_agent.train as gpq
import torch
import torch.distributed as dist

job = gpq.init()
total = torch.zeros(1)
if job.resume_path:
    total = torch.load(os.path.join(job.resume_path, "total"))
with open(f"own.{job.attempt}.{job.rank}", "w", buffering=1) as steps:
    for step in range(job.start_step, 1000000):
        steps.write(f"{step}\\n")
        part = torch.ones(1) / job.replicas
        if job.replicas > 1:
            dist.all_reduce(part)
        total += part
        time.sleep(0.01)
        if job.should_stop():
            if job.rank == 0:
                torch.save(total, os.path.join(job.save_path, "total"))
            job.exit_preempted(step + 1)
        if os.path.exists("enough"):
            flag = torch.ones(1)
        else:
            flag = torch.zeros(1)
        if job.replicas > 1:
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if flag.item():
            break
if job.rank == 0:
    with open("own.result", "w") as stream:
        json.dump([step + 1, total.item(), job.replicas, job.start_step], stream)
job.done()
"""


def train(
    daemon: Daemon, name: str, *, size: int, epochs: int, pace: float, fixed: bool, gpus: int, **more: object
) -> int:
    """`gpus`: the maximum. From step `until` on, training is slow while a file <name>.slow exists."""
    (daemon.work / "train.py").write_text(TRAINING)
    until = more.pop("until", 0)
    settings = {"name": name, "size": size, "epochs": epochs, "pace": pace, "fixed": fixed, "until": until}
    return daemon.submit("train.py", json.dumps(settings), level="script", max_gpus=gpus, grace=60.0, **more)


def lines(daemon: Daemon, name: str) -> list[list[object]]:
    """Complete lines of all attempts and replicas."""
    paths = sorted(daemon.work.glob(f"{name}.*.*"))
    return [
        json.loads(line) for path in paths for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]


def losses(daemon: Daemon, name: str) -> dict[int, float]:
    """Mean loss over the examples of each step."""
    sums: dict[int, list[float]] = {}
    for _, step, seen, loss, *_ in lines(daemon, name):
        both = sums.setdefault(step, [0.0, 0.0])  # type: ignore[call-overload]
        both[0] += loss * len(seen)  # type: ignore[arg-type, operator]
        both[1] += len(seen)  # type: ignore[arg-type]
    return {step: total / count for step, (total, count) in sorted(sums.items())}


def visited(daemon: Daemon, name: str, size: int, epochs: int) -> bool:
    """Has each epoch used each example exactly once?"""
    seen: dict[object, list[int]] = {}
    for epoch, _, examples, *_ in lines(daemon, name):
        seen.setdefault(epoch, []).extend(examples)  # type: ignore[arg-type]
    return {epoch: sorted(part) for epoch, part in seen.items()} == {e: list(range(size)) for e in range(epochs)}


def test_every_pass_is_exact_while_a_job_grows_shrinks_and_changes_its_batch() -> None:
    with Daemon(slots=2, policy="goodput", **EAGER) as daemon:
        size, epochs = 3200, 4
        (daemon.work / "adaptive.slow").touch()
        # With the largest batch there are 200 steps. The slow ones take 75 seconds, enough for everything that the job
        # goes through.
        job = train(daemon, "adaptive", size=size, epochs=epochs, pace=0.02, fixed=False, gpus=2, until=50)
        wait_until(lambda: any(line[5] == 2 for line in lines(daemon, "adaptive")), "it trains on both", LONG)
        wait_until(lambda: daemon.detail(job).job.batch_changes > 0, "its batch changes while it runs", LONG)
        box = daemon.shell("while [ ! -e go ]; do sleep 0.05; done")
        daemon.until(box, "running", patience=LONG)
        attempts = daemon.detail(job).job.attempt
        wait_until(lambda: list(daemon.work.glob(f"adaptive.{attempts}.*")), "it continues next to the black box", LONG)
        assert daemon.detail(job).job.state != "completed"
        (daemon.work / "adaptive.slow").unlink()
        (daemon.work / "go").touch()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert (detail.job.state, detail.job.exit_status) == ("completed", 0), daemon.log(job, detail.job.attempt)
        assert detail.job.resizes >= 2
        assert detail.metrics["gpq_passes"] == detail.metrics["gpq_passes_exact"] >= epochs
        assert detail.job.progress == 1.0
        assert (daemon.work / "adaptive.pt").exists()


def test_resizes_do_not_change_the_loss_curve_of_a_fixed_batch() -> None:
    with Daemon(slots=2, policy="goodput", **EAGER) as daemon:
        size, epochs = 400, 5
        calm = train(daemon, "calm", size=size, epochs=epochs, pace=0.0, fixed=True, gpus=1)
        assert daemon.until(calm, "completed", "failed", patience=LONG).job.state == "completed"
        (daemon.work / "moved.slow").touch()
        job = train(daemon, "moved", size=size, epochs=epochs, pace=0.03, fixed=True, gpus=1, until=60)
        wait_until(lambda: daemon.detail(job).job.level == "resizable", "it has declared itself", LONG)
        daemon.call(Edit([str(job)], {"min_gpus": 2, "max_gpus": 2}), Changed)
        wait_until(lambda: any(line[5] == 2 for line in lines(daemon, "moved")), "it trains on both", LONG)
        daemon.call(Requeue([str(job)]), Changed)
        before = daemon.detail(job).job.attempt
        wait_until(lambda: list(daemon.work.glob(f"moved.{before + 1}.*")), "it resumes after a requeue", LONG)
        (daemon.work / "moved.slow").unlink()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert detail.job.state == "completed", daemon.log(job, detail.job.attempt)
        assert detail.metrics["gpq_passes"] == detail.metrics["gpq_passes_exact"] == epochs
        assert visited(daemon, "moved", size, epochs)
        expected, curve = losses(daemon, "calm"), losses(daemon, "moved")
        assert list(curve) == list(expected)
        assert curve == pytest.approx(expected, rel=1e-4)


def test_a_killed_replica_ends_its_attempt_at_once_and_the_job_resumes() -> None:
    with Daemon(slots=2, interval=1.0) as daemon:
        (daemon.work / "killed.slow").touch()
        job = train(
            daemon, "killed", size=200, epochs=4, pace=0.01, fixed=True, gpus=2, min_gpus=2, retries=2, until=30
        )
        wait_until(lambda: len(lines(daemon, "killed")) >= 2 * 22, "both replicas took 20 steps", LONG)
        daemon.call(Requeue([str(job)]), Changed)  # leaves a checkpoint
        path = wait_until(lambda: [*daemon.work.glob("killed.2.1")], "the second attempt trains", LONG)[0]
        wait_until(lambda: path.read_text().endswith("\n"), "its second replica took a step", LONG)
        os.kill(json.loads(path.read_text().splitlines()[0])[6], signal.SIGKILL)
        wait_until(
            lambda: daemon.detail(job).job.attempt >= 3, "the next attempt starts well before gloo times out", LONG
        )
        (daemon.work / "killed.slow").unlink()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert detail.job.state == "completed", daemon.log(job, detail.job.attempt)
        first = json.loads((daemon.work / "killed.3.0").read_text().splitlines()[0])
        assert first[1] >= 20, "it resumed from the checkpoint"
        assert detail.job.progress == 1.0


def test_a_job_beyond_its_time_limit_goes_on_where_it_stopped_when_it_is_requeued() -> None:
    with Daemon(slots=1, interval=1.0) as daemon:
        (daemon.work / "late.slow").touch()
        job = train(daemon, "late", size=200, epochs=2, pace=0.01, fixed=True, gpus=1, until=5)
        wait_until(lambda: len(lines(daemon, "late")) > 5, "it trains", LONG)
        daemon.call(Edit([str(job)], {"time_limit": 1.0}), Changed)
        daemon.until(job, "timeout", patience=LONG)
        steps = 1 + max(int(str(step)) for _, step, *_ in lines(daemon, "late"))
        (daemon.work / "late.slow").unlink()
        daemon.call(Edit([str(job)], {"time_limit": None}), Changed)
        [message] = daemon.call(Requeue([str(job)]), Changed).messages
        assert message == f"job {job} requeued: it resumes from its newest checkpoint, of step {steps}"
        assert daemon.until(job, "completed", "failed", patience=LONG).job.state == "completed"
        assert visited(daemon, "late", 200, 2)


def test_an_interpreter_waits_on_each_server_where_a_job_may_restart() -> None:
    with Daemon(nodes={"one": 1, "two": 1}, interval=1.0, settle_seconds=0.5) as daemon:
        (daemon.work / "moved.slow").touch()
        job = train(daemon, "moved", size=200, epochs=4, pace=0.01, fixed=True, gpus=1, until=10)
        wait_until(lambda: len(standbys(daemon)) == 2, "a standby on each server", LONG)
        wait_until(lambda: is_warm_after_requeue(daemon, job), "an attempt that starts in a standby", LONG)
        (daemon.work / "moved.slow").unlink()
        assert daemon.until(job, "completed", "failed", patience=LONG).job.state == "completed"
        assert visited(daemon, "moved", 200, 4)


def standbys(daemon: Daemon) -> set[str]:
    """The agents below which an interpreter waits."""
    marked = procs.marked_pids(wire.ENV_MARK, wire.STANDBY_MARK, processes := procs.snapshot())
    agents = {procs.command_of(processes[pid].parent) for pid in marked}
    return {agent for agent in agents if str(daemon.home) in agent}


def is_warm_after_requeue(daemon: Daemon, job: int) -> bool:
    attempt = daemon.detail(job).job.attempt + 1
    daemon.call(Requeue([str(job)]), Changed)
    wait_until(lambda: [*daemon.work.glob(f"moved.{attempt}.0")], "it trains again", LONG)
    [record] = daemon.home.rglob(f"attempts/{job}.{attempt}/{wire.STARTED}")
    return bool(json.loads(record.read_text())["warm"])


def test_a_custom_loop_is_declared_resized_and_resumed() -> None:
    with Daemon(slots=2, policy="goodput", **EAGER) as daemon:
        (daemon.work / "own.py").write_text(OWN_LOOP)
        job = daemon.submit("own.py", level="script", max_gpus=2, grace=60.0)
        wait_until(lambda: daemon.detail(job).job.level == "resizable", "it has declared itself", LONG)
        wait_until(lambda: [*daemon.work.glob("own.*.1")], "it runs on both", LONG)
        box = daemon.shell("while [ ! -e go ]; do sleep 0.05; done")
        daemon.until(box, "running", patience=LONG)
        (daemon.work / "go").touch()
        (daemon.work / "enough").touch()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert detail.job.state == "completed", daemon.log(job, detail.job.attempt)
        steps, total, _, begin = json.loads((daemon.work / "own.result").read_text())
        assert begin > 0
        assert total == pytest.approx(steps), "nothing was lost and nothing repeated"
        assert sorted(path_steps(daemon.work)) == list(range(steps))


def path_steps(work: Path) -> list[int]:
    """Steps that the first replica of each attempt took."""
    return [int(line) for path in work.glob("own.*.0") for line in path.read_text().split()]
