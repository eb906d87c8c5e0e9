"""The script as users start it: alone, under torchrun, with and without gpq, and with its own loop."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gpq_agent
import pytest
from gpq_agent import wire

from tests.support.ports import free_port

from .driver import DEADLINE, TrainingJob, wait_until

ROOTS = [str(Path(__file__).parents[3]), str(Path(gpq_agent.__file__).parents[1])]
Training = Callable[..., TrainingJob]


def environment(**extra: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1", **extra}


def torchrun(replicas: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={replicas}", "--rdzv-backend=static",
        "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--max-restarts=0",
    ]  # fmt: skip


def test_the_script_runs_alone_and_resumes_under_torchrun_without_gpq(training: Training, tmp_path: Path) -> None:
    job = training(epochs=1, checkpoint_dir=str(tmp_path / "mine"))
    script = ["-m", "tests.agent.train.script"]
    subprocess.run([sys.executable, *script, job.text], env=environment(), check=True, timeout=DEADLINE)
    assert sorted(line for micro in visits(job, 0) for line in micro["seen"]) == list(range(203))
    longer = job.text.replace('"epochs": 1', '"epochs": 2')
    subprocess.run([*torchrun(2), *script, longer], env=environment(), check=True, timeout=DEADLINE)
    second = [micro for rank in (0, 1) for micro in visits(job, rank)]
    assert {micro["epoch"] for micro in second} == {1}, "the first epoch is in the checkpoint"
    assert sorted(index for micro in second for index in micro["seen"]) == list(range(203))
    assert list(tmp_path.rglob(wire.REPORT)) == []


def visits(job: TrainingJob, rank: int) -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in (job.out / f"visits.0.{rank}").read_text().splitlines()]


def test_a_stop_order_under_torchrun_and_gpq_ends_the_launcher_with_zero(training: Training) -> None:
    job = training(pace=0.01, epochs=50)
    run_dir = job.folder / "run"
    run_dir.mkdir()
    gpq = {
        wire.ENV_RUN_DIR: str(run_dir),
        wire.ENV_CHECKPOINT_DIR: str(job.checkpoints),
        wire.ENV_ATTEMPT: "1",
        wire.ENV_CORES: "0;0",
    }
    launcher = subprocess.Popen([*torchrun(2), "-m", "tests.agent.train.script", job.text], env=environment(**gpq))
    try:
        wait_until(lambda: "ready" in reported(run_dir), "the first step")
        control = wire.Control(attempt=1, seq=1, stop=True)
        wire.write_json(str(run_dir / wire.CONTROL), control._asdict())
        assert launcher.wait(DEADLINE) == 0
    finally:
        launcher.kill()
        launcher.wait()
    stopped = wire.read_json(str(run_dir / wire.STOPPED))
    assert stopped is not None
    assert (job.checkpoints / "gpq" / "step-{:012d}".format(stopped["step"]) / "state.pt").exists()


def reported(run_dir: Path) -> str:
    path = run_dir / wire.REPORT
    return path.read_text() if path.exists() else ""


CLOSING = """
import atexit, os, sys
import torch.distributed as dist
from gpq_agent.train.process.process_group import close_group

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
atexit.register(lambda: print("open" if dist.is_initialized() else "closed"))
atexit.register(close_group)
if sys.argv[2] == "fails":
    raise ValueError("as a script may")
"""


@pytest.mark.parametrize(("way", "group"), [("ends", "closed"), ("fails", "open")])
def test_the_process_group_closes_at_the_end_but_not_after_an_error(tmp_path: Path, way: str, group: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSING, str(tmp_path / "store"), way],
        env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == group, done.stderr


BUSY = """
import atexit, hashlib, os, sys, time
import torch
import torch.distributed as dist
from gpq_agent.train.process.process_group import let_threads_rest

if sys.argv[2] == "rests":
    atexit.register(let_threads_rest)
store, ended = sys.argv[1], sys.argv[1] + ".ended"
child = os.fork()
dist.init_process_group("gloo", init_method="file://" + store, rank=0 if child else 1, world_size=2)
dist.barrier()
if child:
    while not os.path.exists(ended):  # the other's work waits for this one: so its callback runs in a worker
        time.sleep(0.01)
    dist.broadcast(torch.ones(1), src=0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)

begun = []

def late(future):
    begun.append(True)
    hashlib.pbkdf2_hmac("sha256", b"as a worker", b"that is late", 3_000_000)  # a second, without the interpreter

future = dist.broadcast(torch.ones(1), src=0, async_op=True).get_future().then(late)
open(ended, "w").close()
while not begun:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("way", "code"), [("rests", 0), ("hurries", 1)])
def test_a_late_gloo_thread_does_not_abort_a_finished_training(tmp_path: Path, way: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY, str(tmp_path / "store"), way],
        env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr


MEETING = """
import glob, os, pickle, socket, sys
import gpq_agent.train as gpq
import torch
import torch.distributed as dist
from gpq_agent.train.process.agreement import broadcast_value

class Foreign:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

if sys.argv[2] == "script":
    dist.init_process_group("gloo")
job = gpq.init()
own = {os.readlink(path)[8:-1] for path in glob.glob("/proc/self/fd/*") if os.path.islink(path)}
rows = [line.split() for table in glob.glob("/proc/self/net/tcp*") for line in list(open(table))[1:]]
places = {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in own}
print(broadcast_value({"rank": job.rank}, None), places <= {"0100007F", "0" * 24 + "01000000"})
if job.rank:
    try:
        broadcast_value(None, None)
    except gpq.GpqTrainError as error:
        print(error)
else:
    data = torch.frombuffer(bytearray(pickle.dumps(Foreign())), dtype=torch.uint8)
    dist.broadcast(torch.tensor([len(data)]), src=0)
    dist.broadcast(data, src=0)
"""


@pytest.mark.parametrize("opener", ["library", "script"])
def test_replicas_on_one_server_listen_on_loopback_only_and_run_nothing_that_a_replica_sends(
    tmp_path: Path, opener: str
) -> None:
    common = {
        wire.ENV_MEETING: str(tmp_path / "meeting"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING, str(tmp_path / "foreign"), opener],
            env=environment(**common, RANK=rank, LOCAL_RANK=rank), stdout=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    lines = [replica.communicate(timeout=DEADLINE)[0].splitlines() for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0]
    assert [line[0] for line in lines] == ["{'rank': 0} True"] * 2
    assert lines[1][1].startswith("a replica sends no value: "), lines
    assert not (tmp_path / "foreign").exists()


def test_a_script_that_runs_alone_prints_nothing_from_gpq(training: Training) -> None:
    job = training(epochs=2)
    command = [sys.executable, "-m", "tests.agent.train.script", job.text]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=True, cwd=job.folder
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert {path.name for path in job.folder.iterdir()} == {"out", "checkpoints"}
    assert list(job.checkpoints.iterdir()) == []
