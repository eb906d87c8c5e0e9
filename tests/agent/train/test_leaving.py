"""A stop loses nothing of the script: files, `finally` blocks and exit handlers all finish, whatever they do."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints

from .driver import DEADLINE
from .test_launch import environment, torchrun

# A loop that orders its own stop `ORDER` steps after its start. `write` and the code around train() vary.
LOOP = """
import atexit, logging, logging.handlers, os, sys, threading, time
import gpq_agent.train as gpq
import torch
from gpq_agent import wire

order, size, epochs = int(os.environ["ORDER"]), 96, 3
job = gpq.init()
name = f"{job.attempt}.{job.rank}"
data = torch.utils.data.TensorDataset(torch.arange(size), torch.randn(size, 4))
loader = job.loader(data, batch_size=4, max_local_batch=2, fixed_batch=True, num_workers=WORKERS)
model = job.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.prepare(model, optimizer)
begun = job.step

def train():
    for epoch in job.epochs(epochs):
        for index, x in loader:
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for one in index.tolist() if loader.counted else []:
                write(epoch, one)
            time.sleep(0.02)
            if 0 <= order <= job.step - begun and job.rank == 0 and job.at_step:
                ordered = wire.Control(job.attempt, 1, stop=True)._asdict()
                wire.write_json(os.environ["GPQ_RUN_DIR"] + "/control.json", ordered)

"""

CSV = """
# Each line is short, and all of them together less than a buffer.
rows = open(f"rows.{name}", "w")
left_open = open(f"open.{name}", "w")
binary = open(f"binary.{name}", "wb", buffering=1 << 20)
later = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(f"log.{name}"))
logging.getLogger().addHandler(later)
atexit.register(lambda: open(f"atexit.{name}", "w").write("ran"))

def write(epoch, one):
    line = f"{epoch},{one}\\n"
    rows.write(line)
    left_open.write(line)
    binary.write(line.encode())
    logging.getLogger().warning(f"{epoch},{one}")

try:
    train()
finally:
    rows.write("footer\\n")
    rows.close()
    left_open.write("footer\\n")  # by whom nobody closes it
"""

SWALLOWING = """
def write(epoch, one):
    pass

for turn in range(3):
    try:
        train()
        print("trained to the end", flush=True)
    except BaseException as error:
        print(f"met {type(error).__name__}", flush=True)  # in one piece: the other replica writes there too
print("goes on", flush=True)
sys.exit(7)
"""

FAILING = """
def write(epoch, one):
    pass

try:
    train()
finally:
    raise ValueError("no such\\ntable") if job.rank == 0 else SystemExit(3)
"""

IN_A_THREAD = """
stream = open(f"rows.{name}", "w")
def write(epoch, one):
    stream.write(f"{epoch},{one}\\n")

thread = threading.Thread(target=train)
thread.start()
thread.join()
print("not reached", flush=True)
"""

TWICE = """
def write(epoch, one):
    global seen
    seen += 1
    if os.environ["GPQ_RUN_DIR"] and seen == 1:
        print("marked" if os.path.exists(marker) else "open", flush=True)

marker, seen = os.path.join(os.environ["GPQ_RUN_DIR"], wire.FINISHED), 0
train()
epochs, seen = 4, 0
print("marked" if os.path.exists(marker) else "open", flush=True)
train()
"""

ACCURACY = """
def write(epoch, one):
    global seen
    seen += 1

def show(what):
    marked, lost = os.path.exists(os.environ["GPQ_RUN_DIR"] + "/" + wire.FINISHED), job._engine.shape.freedoms.lost
    if job.rank == 0:  # which marks the end
        print(f"{what} {seen} {job.step} {marked} {lost or ''}".rstrip(), flush=True)

seen = 0
train()
show("trained")
LOOK
show("looked")
epochs += 1
train()
show("trained")
"""
LOOKS = {
    "the whole epoch": "assert sum(len(x) for _, x in loader) == size // job.replicas",
    "on the first replica alone": "job.rank or [model.module(x) for _, x in loader]",
    "some batches": "[x for _, (_, x) in zip(range(3), loader)]",
}

DONE = """
import json, os, sys
import gpq_agent.train as gpq
from gpq_agent import wire

job = gpq.init()
marker = os.path.join(os.environ["GPQ_RUN_DIR"], wire.FINISHED)
for step in range(job.start_step, 3):
    job.should_stop()
    open(os.path.join(job.save_path, "state"), "w").close()
    job.saved(step + 1)
print(os.path.exists(marker), flush=True)
job.done()
print(os.path.exists(marker), flush=True)
job.should_stop()
print(os.path.exists(marker), flush=True)
"""


class Runs:
    """Attempts of one script, one after another. Each is a real process, or torchrun if there are two replicas."""

    def __init__(self, folder: Path, body: str, workers: int = 0) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text((LOOP + body if "def write" in body else body).replace("WORKERS", str(workers)))
        self.attempt = 0

    def run(self, replicas: int = 1, order: int = -1) -> "subprocess.CompletedProcess[str]":
        self.attempt += 1
        self.run_dir = self.folder / f"attempt-{self.attempt}"
        self.run_dir.mkdir()
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        more = {wire.ENV_RUN_DIR: str(self.run_dir), wire.ENV_CHECKPOINT_DIR: str(self.folder / "checkpoints")}
        more |= {wire.ENV_ATTEMPT: str(self.attempt), "ORDER": str(order)}
        command = torchrun(replicas) if replicas > 1 else torchrun(1)[:1]
        return subprocess.run(
            [*command, str(self.script)], env=environment(**more), cwd=self.folder, capture_output=True, text=True,
            timeout=DEADLINE, check=False,
        )  # fmt: skip

    @property
    def stopped(self) -> bool:
        return (self.run_dir / wire.STOPPED).exists()


def test_no_line_of_any_file_is_lost_over_three_resizes(tmp_path: Path) -> None:
    runs = Runs(tmp_path, CSV, workers=1)
    for replicas in (1, 2, 1):
        done = runs.run(replicas, order=3)
        assert (done.returncode, runs.stopped) == (0, True), done.stderr
    done = runs.run(2)
    assert (done.returncode, runs.stopped) == (0, False), done.stderr
    names = ["1.0", "2.0", "2.1", "3.0", "4.0", "4.1"]
    for kind, footers in (("rows", 1), ("open", 1), ("binary", 0), ("log", 0)):
        lines = [(tmp_path / f"{kind}.{name}").read_text().splitlines() for name in names]
        assert all(each[len(each) - footers :] == ["footer"] * footers for each in lines), kind
        assert all(len(each) > footers for each in lines[:4]), "each attempt takes steps"
        rows = Counter(line for each in lines for line in each[: len(each) - footers])
        assert rows == Counter(f"{epoch},{one}" for epoch in range(3) for one in range(96)), kind
    assert all((tmp_path / f"atexit.{name}").read_text() == "ran" for name in names)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_script_that_swallows_the_stop_gets_it_again_and_stops(tmp_path: Path, replicas: int) -> None:
    runs = Runs(tmp_path, SWALLOWING)
    done = runs.run(replicas, order=3)
    assert done.stdout.count("met StopTraining") == 3 * replicas, done.stderr
    assert done.stdout.count("goes on") == replicas
    assert "trained to the end" not in done.stdout
    assert (done.returncode, runs.stopped) == (0, True)
    assert not (runs.run_dir / wire.FINISHED).exists()


def test_a_failed_clean_up_is_reported_in_one_line_and_the_job_stops(tmp_path: Path) -> None:
    runs = Runs(tmp_path, FAILING)
    done = runs.run(replicas=2, order=3)
    said = (
        "the script's own clean-up failed while it stopped (ValueError: no such table), but its checkpoint is complete"
    )
    assert done.stderr.count(f"gpq: {said}\n") == 1, done.stderr
    assert "Traceback" in done.stderr
    assert (done.returncode, runs.stopped) == (0, True)
    reports = [wire.decode(line) for line in (runs.run_dir / wire.REPORT).read_bytes().splitlines(keepends=True)]
    assert [line["message"] for line in reports if line["kind"] == "notice"][-1] == said


def test_a_stopped_loop_in_another_thread_has_written_its_files(tmp_path: Path) -> None:
    runs = Runs(tmp_path, IN_A_THREAD)
    done = runs.run(order=3)
    assert (done.returncode, runs.stopped, done.stdout) == (0, True, ""), done.stderr
    rows = (tmp_path / "rows.1.0").read_text()
    assert rows.endswith("\n")
    assert rows.count("\n") >= 3 * 4


def test_the_finished_mark_lasts_until_the_script_trains_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path, TWICE)
    done = runs.run()
    assert done.stdout.split() == ["open", "marked", "open"], done.stderr
    assert (runs.run_dir / wire.FINISHED).exists()
    newest = max((tmp_path / "checkpoints" / "gpq").glob("step-*"))
    manifest = wire.read_json(str(newest / "manifest.json"))
    assert manifest is not None
    assert manifest["why"] == "end"


@pytest.mark.parametrize("look", LOOKS)
def test_a_loop_after_the_last_epoch_that_trains_nothing_changes_nothing(tmp_path: Path, look: str) -> None:
    done = Runs(tmp_path, ACCURACY.replace("LOOK", LOOKS[look])).run(replicas=2)
    lines = ["trained 144 72 True", "looked 144 72 True", "trained 192 96 True"]
    assert done.stdout.splitlines() == lines, done.stderr
    assert "gpq: " not in done.stderr


def test_a_script_with_its_own_loop_says_when_it_is_done(tmp_path: Path) -> None:
    runs = Runs(tmp_path, DONE)
    done = runs.run()
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
    path = str(tmp_path / "checkpoints" / "own" / "saved.json")
    record = wire.read_json(path)
    assert record is not None
    assert (record["step"], record["end"]) == (3, True)
    saves = ScriptCheckpoints(str(tmp_path / "checkpoints"))
    assert saves.start_step == 3
    os.makedirs(saves.next_path(), exist_ok=True)
    saves.commit(4)  # a script that saves again has not ended
    assert "end" not in (wire.read_json(path) or {})
