"""What a script does to the outside goes on in one run of a tracking library, and is told if a restart or another
replica would spoil it.

`wandb` and `mlflow` stand for the libraries: they use the variables that the real ones read, as these do.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.spool.checkpoint_folder import ALONGSIDE
from gpq_agent.train.loop.side_effects import RECORD

from tests.support.ports import free_port

from .driver import DEADLINE, FORKSERVER

# They note their runs in hidden files, which are no results of the script.
WANDB = """
import os, uuid
class Run:
    def __init__(self):
        self.disabled = os.environ.get("WANDB_MODE") == "disabled"
        self.id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex
        if not self.disabled:
            print(self.id, os.environ.get("WANDB_RESUME"), file=open(".wandb.runs", "a"))
run = None
def init():
    global run
    run = Run()
"""
MLFLOW = """
import os, types, uuid
active = None
def start_run():
    global active
    run_id = os.environ.pop("MLFLOW_RUN_ID", None) or uuid.uuid4().hex
    active = types.SimpleNamespace(
        info=types.SimpleNamespace(run_id=run_id), data=types.SimpleNamespace(tags={})
    )
    print(run_id, file=open(".mlflow.runs", "a"))
def active_run():
    return active
"""
# It is stopped after its second epoch, before or after a checkpoint. `OUT` stands for a name with the time in it.
SCRIPT = """
import json, os, signal, sys
import gpq_agent.train as gpq
import torch
import wandb

OPTIONS = json.loads(os.environ["OPTIONS"])
job = gpq.init()
wandb.init()
if OPTIONS.get("mlflow"):
    import mlflow
    mlflow.start_run()
writes = job.rank == 0 or not OPTIONS.get("guarded")
if writes:
    folder = "outputs/" + ("always" if OPTIONS.get("fixed") else str(job.attempt))
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/config.json", "w") as stream:
        json.dump({}, stream)
    with open("config.json", "w") as stream:
        json.dump({}, stream)
    log = open("metrics.csv", "a" if OPTIONS.get("fixed") and job.resumed else "w", buffering=1)
data = torch.utils.data.TensorDataset(torch.ones(64, 1))
loader = job.loader(data, batch_size=8, fixed_batch=True)
model = job.wrap(torch.nn.Linear(1, 1))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for epoch in job.epochs(30):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if writes:
        log.write("{}\\n".format(epoch))
        with open("best.json", "w") as stream:
            json.dump(epoch, stream)
    if epoch == 1 and job.attempt == 1 and job.rank == 0 and "stop" in OPTIONS:
        os.kill(os.getpid(), OPTIONS["stop"])
"""


def replica(work: str, environ: Mapping[str, str], output: str) -> None:
    """The main function of a forked replica."""
    os.chdir(work)
    os.environ.update(environ)
    multiprocessing.set_start_method("fork", force=True)
    sys.path.insert(0, work)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    runpy.run_path("train.py", run_name="__main__")


class Runs:
    """A script in its folder, and its attempts."""

    def __init__(self, folder: Path) -> None:
        self.work, self.attempts = folder / "work", 0
        self._folder = folder
        self.work.mkdir(parents=True)
        for name, text in (("wandb.py", WANDB), ("mlflow.py", MLFLOW), ("train.py", SCRIPT)):
            (self.work / name).write_text(text)

    def attempt(self, replicas: int = 1, environ: Mapping[str, str] | None = None, **options: object) -> list[str]:
        """Run the next one to its end. Returns its notices, in order."""
        self.attempts += 1
        run_dir = self._folder / f"attempt-{self.attempts}"
        run_dir.mkdir()
        common = {
            wire.ENV_RUN_DIR: str(run_dir),
            wire.ENV_CHECKPOINT_DIR: str(self._folder / "checkpoints"),
            wire.ENV_ATTEMPT: str(self.attempts),
            wire.ENV_RESUME: "1" if self.attempts > 1 else "",
            wire.ENV_JOB: "7",
            "WORLD_SIZE": str(replicas),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OPTIONS": json.dumps(options),
            **(environ or {}),
        }
        processes = []
        for rank in range(replicas):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            output = str(run_dir / f"output.{rank}")
            processes.append(FORKSERVER.Process(target=replica, args=(str(self.work), own, output)))
            processes[-1].start()
        for process in processes:
            process.join(DEADLINE)
        expected = {0} if "stop" not in options or self.attempts > 1 else {143, -9}
        outputs = [(run_dir / f"output.{rank}").read_text() for rank in range(replicas)]
        assert {process.exitcode for process in processes} <= expected, "\n".join(outputs)
        lines = [wire.decode(line) for line in (run_dir / wire.REPORT).read_bytes().splitlines(keepends=True)]
        return [line["message"] for line in lines if line["kind"] == "notice"]

    def lines(self, name: str) -> list[list[str]]:
        return [line.split() for line in (self.work / name).read_text().splitlines()]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Runs(tmp_path / "job")


def about(notices: list[str], *names: str) -> list[str]:
    return [next((name for name in names if name in notice), notice) for notice in notices]


def test_all_attempts_log_in_one_run_and_another_job_in_its_own(runs: Runs, tmp_path: Path) -> None:
    runs.attempt(stop=15, fixed=True, mlflow=True)
    assert runs.attempt(fixed=True, mlflow=True) == []
    (first, again), (of_mlflow, resumed) = runs.lines(".wandb.runs"), runs.lines(".mlflow.runs")
    assert first == again == [first[0], "allow"]
    assert of_mlflow == resumed
    other = Runs(tmp_path / "other")
    other.attempt(fixed=True)
    assert other.lines(".wandb.runs")[0][0] != first[0]


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"WANDB_RUN_ID": "mine"}, ["mine", "None"]),
        ({"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}, ["mine", "must"]),
        ({"WANDB_SWEEP_ID": "sweep"}, [None, "None"]),
        ({"WANDB_RUN_GROUP": "group"}, [None, "None"]),
    ],
)
def test_what_the_user_sets_stays(runs: Runs, environ: dict[str, str], run: list[str | None]) -> None:
    runs.attempt(environ=environ, fixed=True)
    ((name, resume),) = runs.lines(".wandb.runs")
    assert [name if run[0] else None, resume] == run
    assert not name.startswith("gpq-")


def test_one_replica_logs_unless_the_user_groups_the_runs_of_all(runs: Runs) -> None:
    (notice,) = runs.attempt(2, guarded=True, fixed=True)
    assert notice.startswith("wandb logs on replica 0 alone")
    assert len(runs.lines(".wandb.runs")) == 1
    assert runs.attempt(2, {"WANDB_RUN_GROUP": "group"}, guarded=True, fixed=True) == []
    assert len(runs.lines(".wandb.runs")) == 3


def test_a_run_that_each_replica_starts_past_gpq_is_told(runs: Runs) -> None:
    notices = runs.attempt(2, mlflow=True, guarded=True)
    assert sorted(about(notices, "wandb logs", "mlflow writes")) == ["mlflow writes", "wandb logs"]


def test_a_log_that_is_emptied_before_gpq_init_is_told(runs: Runs) -> None:
    script = (runs.work / "train.py").read_text()
    script = script.replace("job = gpq.init()", 'early = open("run.log", "w", buffering=1)\njob = gpq.init()')
    (runs.work / "train.py").write_text(script.replace("    if writes:", '    early.write("line")\n    if writes:'))
    assert runs.attempt(stop=15, fixed=True) == []
    (notice,) = runs.attempt(fixed=True)
    assert notice.startswith("run.log is emptied, and with it what an earlier attempt wrote")


def test_a_run_that_was_begun_before_gpq_init_is_told_when_it_is_another_one(runs: Runs) -> None:
    script = (runs.work / "train.py").read_text()
    script = script.replace("job = gpq.init()\nwandb.init()", "wandb.init()\njob = gpq.init()")
    (runs.work / "train.py").write_text(script)
    assert runs.attempt(stop=15, fixed=True) == []
    (notice,) = runs.attempt(fixed=True)
    assert f"wandb writes another run than {runs.lines('.wandb.runs')[0][0]} of an earlier attempt" in notice


def test_a_restart_that_empties_a_log_or_names_a_folder_anew_is_told(runs: Runs) -> None:
    assert runs.attempt(stop=15) == []
    notices = runs.attempt()
    assert about(notices, "each attempt makes a folder of its own, as outputs/1", "metrics.csv is emptied") == [
        "each attempt makes a folder of its own, as outputs/1",
        "metrics.csv is emptied",
    ]


def test_files_that_are_emptied_before_there_is_a_checkpoint_are_not_told(runs: Runs) -> None:
    runs.attempt(stop=9)  # the job begins anew, so its files do
    assert runs.attempt() == []


def test_a_file_that_several_replicas_write_is_told_once(runs: Runs) -> None:
    notices = about(runs.attempt(2), "wandb logs", "outputs/1/config.json", " config.json", "metrics.csv", "best.json")
    assert sorted(notices) == [" config.json", "best.json", "metrics.csv", "outputs/1/config.json", "wandb logs"]


def test_its_record_moves_with_the_checkpoints_of_the_job() -> None:
    assert RECORD in ALONGSIDE
