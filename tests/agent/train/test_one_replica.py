"""What a script does on one replica alone neither hangs nor changes what the others train."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent import wire

from tests.support.ports import free_port

from .driver import DEADLINE, FORKSERVER

Script = Callable[[Path], None]


def run_replica(environment: dict[str, str], script: Script, folder: Path) -> None:
    """If the library stops it with a message, also write that to <folder>/refused.<rank>."""
    os.environ.update(environment)
    try:
        script(folder)
    except gpq.GpqTrainError as error:
        (folder / f"refused.{environment['RANK']}").write_text(error.message)
        raise


def start(folder: Path, script: Script, attempt: int = 1) -> list[Any]:
    """Two replicas of one server run `script`."""
    run_dir = folder / f"attempt-{attempt}"
    run_dir.mkdir()
    port = str(free_port())
    processes = []
    for rank in range(2):
        environment = {
            wire.ENV_RUN_DIR: str(run_dir), wire.ENV_CHECKPOINT_DIR: str(folder), wire.ENV_ATTEMPT: str(attempt),
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        process = FORKSERVER.Process(target=run_replica, args=(environment, script, folder))
        process.start()
        processes.append(process)
    return processes


def wait(processes: list[Any]) -> list[int | None]:
    """Exit codes by rank. None: still running, and killed."""
    for process in processes:
        process.join(DEADLINE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def refusals(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("refused.*"))]


def prepared(job: gpq.Job, model: torch.nn.Module | None = None) -> tuple[Any, Any, Any]:
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(64, 1) / 64)
    loader = job.loader(data, batch_size=8, fixed_batch=True)
    model = job.wrap(model or torch.nn.Linear(1, 1))
    model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return loader, model, optimizer


def train_epoch(loader: Any, model: Any, optimizer: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


# -- values ----------------------------------------------------------------------------------------


def keeps_best(folder: Path) -> None:
    job = gpq.init()
    best = job.state("best", 0.0) if job.rank == 0 else -1.0
    training = prepared(job)
    for _ in job.epochs(job.attempt):
        train_epoch(*training)
        if job.rank == 0:
            job.state("best", 0.75)
    (folder / f"best.{job.attempt}.{job.rank}").write_text(str(best))


def test_one_replica_alone_restores_a_value(tmp_path: Path) -> None:
    for attempt in (1, 2):
        assert wait(start(tmp_path, keeps_best, attempt)) == [0, 0]
    assert [float((tmp_path / f"best.{attempt}.0").read_text()) for attempt in (1, 2)] == [0.0, 0.75]


class Average:
    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class Counter(Average):
    pass


def numbers_apart(folder: Path) -> None:
    job = gpq.init()
    if job.rank == 0:
        job.state(Average())
    job.state(Counter())
    prepared(job)


def test_a_part_that_would_get_the_state_of_another_one_is_refused(tmp_path: Path) -> None:
    assert wait(start(tmp_path, numbers_apart)) == [1, 1]
    line = "job.state() keeps other objects on one replica than on replica 0"
    assert refusals(tmp_path) == [line, line]
