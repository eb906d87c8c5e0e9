"""If one replica alone notices something as it ends, the next attempt knows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gpq_agent.train as gpq
import pytest
import torch
import torch.distributed as dist
from gpq_agent import wire
from gpq_agent.train.habits.freedoms import Freedoms
from gpq_agent.train.habits.table import HABITS, Habit
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.agreement import Agreement, Proposal
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.program import program

from .driver import DEADLINE, FORKSERVER, free_port
from .test_stepping import Examples, job, prepared


def freedoms(folder: Path, said: list[wire.Habit]) -> Freedoms:
    return Freedoms(str(folder), Agreement(None, 0, Proposal), 0, said.append)


def test_a_habit_that_ends_a_replica_is_reported_once_and_binds_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "gpq").mkdir()
    said: list[wire.Habit] = []
    first = freedoms(tmp_path, said)
    first.recall()
    first.record_locally(Habit("part-error", "ValueError with 2 of 16 examples"))
    first.record_locally(Habit("part-error", "again"))
    assert [habit.code for habit in said] == ["part-error"]
    assert "ValueError with 2 of 16 examples" in said[0].message
    later = freedoms(tmp_path, said)
    later.recall()
    assert later.lost == {"accumulate", "split"} == first.lost


def recall(rank: int, folder: str, port: int) -> None:
    """One of two replicas, each with its own checkpoint folder. Writes which habits it reports and which freedoms it
    lost."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    said: list[str] = []
    agreement = Agreement(dist.group.WORLD, rank, Proposal)
    this = Freedoms(f"{folder}/{rank}", agreement, rank, lambda habit: said.append(habit.code))
    this.recall()
    Path(folder, f"{rank}.json").write_text(json.dumps([said, sorted(this.lost)]))
    dist.destroy_process_group()


def test_the_next_attempt_reports_what_ended_a_replica_on_another_server(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / str(rank) / "gpq").mkdir(parents=True)
    freedoms(tmp_path / "1", []).record_locally(Habit("part-error", "ValueError with 2 of 16 examples"))
    port = free_port()
    places = [(rank, str(tmp_path), port) for rank in (0, 1)]
    processes = [FORKSERVER.Process(target=recall, args=place) for place in places]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(DEADLINE)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.join()
    outcome = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert outcome == [[["part-error"], ["accumulate", "split"]], [[], ["accumulate", "split"]]]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        BrokenPipeError(),
        TimeoutError(),
        ModuleNotFoundError(),
        MemoryError(),
        KeyboardInterrupt(),
        RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:4915"),
        dist.DistBackendError("NCCL communicator was aborted on rank 0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_from_outside_the_loop_is_not_blamed_on_splitting(error: BaseException) -> None:
    this = job()
    loader = this.loader(Examples(24), batch_size=24, max_local_batch=12, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(1):
        for x, y in loader:
            this._engine.failures.failed(error)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert this._engine.shape.freedoms.lost == set()


@pytest.mark.parametrize("cut", [True, False], ids=["split", "whole"])
def test_an_error_is_blamed_on_splitting_only_in_the_first_split_step(cut: bool) -> None:
    this = job()
    loader = this.loader(Examples(96), batch_size=24, max_local_batch=12 if cut else None, fixed_batch=True)
    model, optimizer, _ = prepared(this)
    engine, found = this._engine, []
    for _ in this.epochs(1):
        for x, y in loader:
            engine.failures.failed(gpq.GpqTrainError("of the library"))
            assert not engine.shape.freedoms.lost
            engine.failures.failed(IndexError("of the loop"))
            found.append(set(engine.shape.freedoms.lost))
            engine.shape.freedoms.lost.clear()
            engine.shape.freedoms._agreed.clear()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    both = {"accumulate", "split"}
    assert found == ([both, both] + 6 * [set()] if cut else 4 * [set()])


@pytest.mark.parametrize("given", [0, 1, 2])
def test_each_optimizer_with_a_scheduler_must_have_one_that_the_job_was_given(given: int) -> None:
    this = job()
    loader = this.loader(Examples(40), batch_size=4, fixed_batch=True)
    models = [torch.nn.Linear(5, 1), torch.nn.Linear(5, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99) for optimizer in optimizers]
    this.prepare(models, optimizers, schedules[:given])
    for _ in this.epochs(1):
        for x, y in loader:
            for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                schedule.step()
    assert this._engine.shape.freedoms.noticed("forgotten-scheduler") == (given < 2)


def attempt(folder: Path, script_accepts: str = "", found: wire.Proof | None = None) -> Freedoms:
    """What is known after an epoch of a loop that calls next() for its batches and sets its own rate."""
    environ = {wire.ENV_ACCEPTED: script_accepts}
    if found is not None:
        environ[wire.ENV_PROOF] = json.dumps(found._asdict())
    this = Job(Environment(checkpoint_dir=str(folder)), torch.device("cpu"), 0, environ)
    loader = this.loader(Examples(40), batch_size=10)
    model, optimizer, _ = prepared(this)
    for _ in this.epochs(1):
        batches = iter(loader)
        for count in range(len(loader)):
            x, y = next(batches)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = 0.1 / (count + 1)
    return this._engine.shape.freedoms


def test_suspected_habits_can_be_accepted_but_observed_ones_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(attempt(tmp_path)._agreed) == {"own-next", "own-rate"}
    text = capsys.readouterr().err
    assert "gpq check finds no difference: --accept own-next" in text
    assert "--accept own-rate" not in text
    # It also works in a later attempt than the one that noted it.
    assert set(attempt(tmp_path, "own-next,own-rate,made-up")._agreed) == {"own-rate"}
    text = capsys.readouterr().err
    assert "--accept own-rate has no effect: only suspected habits can be accepted" in text
    assert "--accept made-up has no effect" in text
    assert "--accept own-next has" not in text


def test_a_call_of_next_is_seen_in_a_function_that_python_has_specialized(tmp_path: Path) -> None:
    """Python 3.11 and later replace the instructions of a function that has run some ten times."""
    habits = [set(attempt(tmp_path / str(number))._agreed) for number in range(12)]
    assert habits == 12 * [{"own-next", "own-rate"}]


SAFE = ["accumulate", "split", "resize"]


def test_a_failed_gpq_check_counts_even_after_the_script_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = program()
    assert os.path.realpath(__file__) in here.files
    assert not any("site-packages" in path or "gpq_agent" in path for path in here.files)
    noted = {*HABITS["own-next"].freedoms, *HABITS["own-rate"].freedoms}
    assert attempt(tmp_path / "a", found=wire.Proof(here.digest, SAFE, [])).lost == noted
    whole = [*SAFE, "retune"]
    assert attempt(tmp_path / "c", found=wire.Proof("another", whole, [])).lost == noted
    cleared = attempt(tmp_path / "c", found=wire.Proof(here.digest, whole, []))
    assert set(cleared._agreed) == {"own-rate"}, "a verdict for this very program refutes suspicions"
    other = wire.Proof("another", SAFE[:2], ["resize"], "two replicas: differs")
    assert attempt(tmp_path / "b", found=other).lost == noted
    text = capsys.readouterr().err
    assert "has changed since" not in text, "gpq submit says so"
    assert "(two replicas: differs). gpq will not change the number of GPUs (resize)" in text
    monkeypatch.setattr("gpq_agent.train.loop.engine.program", None)  # it reads no module of the script
    environ = {wire.ENV_PROOF: json.dumps(other._asdict())}
    Job(Environment(), torch.device("cpu"), 0, environ)._engine.recall()
    environ = {wire.ENV_PROOF: "[]"}
    Job(Environment(), torch.device("cpu"), 0, environ)._engine.recall()
    assert "the verdict of gpq check cannot be read" in capsys.readouterr().err
