"""Published scripts with gpq's few lines: three forced resizes in mid-epoch leave no trace in their weights."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.loop import boundary
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.support.ports import free_port

from .driver import DEADLINE, FORKSERVER

FOLDER = Path(__file__).parent / "scripts"
REPLICAS = (1, 2, 1, 2)
TOLERANCE = 1e-9  # relative to the norm of each tensor, in double precision

# Scripts, the steps after which an attempt must stop (three, none at the end of an epoch), and the habits that gpq
# reports.
SCRIPTS = {
    "classifier": ((4, 7, 9), []),
    "residual": ((3, 8, 10), []),
    "adversarial": ((5, 9, 8), ["two-passes"]),
    "windows": ((7, 11, 9), []),
}


def replica(environment: Mapping[str, str], script: str, out: str, stop_after: int) -> None:
    """Main function of a forked process: run the script as if started, and order a stop after this many steps."""
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    # In single precision, rounding alone can move an activation across the kink of a ReLU. The weights then differ by
    # 1e-2.
    torch.set_default_dtype(torch.float64)
    vars(boundary).update(AGREE_SECONDS=0.0)
    if stop_after and environment.get("RANK", "0") == "0":
        order_to_stop(environment, stop_after)
    sys.argv = [script, out]
    runpy.run_path(script, run_name="__main__")


def order_to_stop(environment: Mapping[str, str], stop_after: int) -> None:
    control = wire.Control(attempt=int(environment[wire.ENV_ATTEMPT]), seq=2, stop=True)  # after one of the script
    made: list[int] = []
    first: list[Any] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        first[:] = first or [optimizer]  # count only one of several optimizers
        made.extend([1] if optimizer is first[0] else [])
        if len(made) == stop_after:
            wire.write_json(os.path.join(environment[wire.ENV_RUN_DIR], wire.CONTROL), control._asdict())

    register_optimizer_step_post_hook(stepped)


class Run:
    """All attempts of one job that runs a script. replica: the main function of each process."""

    replica = staticmethod(replica)

    def __init__(self, folder: Path, script: Path) -> None:
        self.script, self.folder = str(script), folder
        self.out = folder / "weights"
        (folder / "checkpoints").mkdir(parents=True)
        self.stops: list[int] = []
        self.habits: set[str] = set()
        self.notices: list[str] = []

    def attempt(self, number: int, replicas: int, stop_after: int = 0) -> None:
        run_dir = self.folder / f"attempt-{number}"
        run_dir.mkdir()
        variables = {
            wire.ENV_RUN_DIR: str(run_dir), wire.ENV_CHECKPOINT_DIR: str(self.folder / "checkpoints"),
            wire.ENV_ATTEMPT: str(number), wire.ENV_RESUME: str(int(number > 1)),
        }  # fmt: skip
        self.launch(replicas, variables, stop_after)
        lines = [wire.decode(line) for line in (run_dir / wire.REPORT).read_bytes().splitlines(keepends=True)]
        self.habits |= {line["code"] for line in lines if line["kind"] == "habit"}
        self.notices += [line["message"] for line in lines if line["kind"] == "notice"]
        if stop_after:
            self.stops.append(json.loads((run_dir / wire.STOPPED).read_text())["step"])

    def launch(self, replicas: int, variables: Mapping[str, str], stop_after: int = 0) -> None:
        """Run the script to its end with these variables, and with those of torchrun for several replicas."""
        port = str(free_port())
        processes = []
        for rank in range(replicas):
            environment = dict(variables)
            if replicas > 1:
                environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(replicas))
                environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            arguments = (environment, self.script, str(self.out), stop_after)
            processes.append(FORKSERVER.Process(target=self.replica, args=arguments))
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(DEADLINE)
            assert [process.exitcode for process in processes] == [0] * replicas
        finally:
            for process in processes:
                process.kill()
                process.join()

    def weights(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = torch.load(self.out, weights_only=True)
        return {name.replace("module.", ""): value for name, value in found.items()}


def assert_same(undisturbed: Run, resized: Run) -> None:
    """Both have the same weights."""
    expected, weights = undisturbed.weights(), resized.weights()
    assert expected.keys() == weights.keys()
    for key, value in expected.items():
        error = (weights[key].double() - value.double()).norm() / value.double().norm().clamp_min(1e-12)
        assert error < TOLERANCE, f"{key} after stops at {resized.stops}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_published_script_has_the_weights_of_one_replica_after_three_forced_resizes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stops, told = SCRIPTS[name]
    script = FOLDER / f"{name}.py"
    undisturbed, resized = Run(tmp_path / "undisturbed", script), Run(tmp_path / "resized", script)
    undisturbed.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate(zip(REPLICAS, (*stops, 0), strict=True), start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(set(resized.stops)) == 3, "three stops, each at another step"
    assert_same(undisturbed, resized)
    assert undisturbed.habits == resized.habits == set(told)
    assert undisturbed.notices == resized.notices == []


def test_a_schedule_that_depends_on_the_number_of_gpus_is_refused_on_another(tmp_path: Path) -> None:
    run = Run(tmp_path, FOLDER / "schedule.py")
    run.attempt(1, replicas=1, stop_after=3)
    with pytest.raises(AssertionError, match=r"\[1, 1\] =="):
        run.attempt(2, replicas=2)
    error = Path(f"{run.out}.error").read_text()
    assert error == "the function of a schedule gives other factors on 2 replicas than on 1 before"
    run.attempt(3, replicas=1)
    assert run.weights()
