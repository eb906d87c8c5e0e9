"""gpq refuses a state that is split over replicas at once, even with one replica, and says what works instead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from gpq_agent.train.loop.setup import refuse_sharded
from gpq_agent.train.process.environment import Environment
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.agent.train.script import Examples
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A process group with only this process."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    dist.init_process_group("gloo")
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def fsdp(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    return FullyShardedDataParallel(
        nn.Linear(4, 1), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD
    )


def fsdp_within(mesh: DeviceMesh) -> nn.Module:
    return nn.Sequential(fsdp(mesh), nn.Linear(1, 1))


def fully_sharded(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    fully_shard(model[0], mesh=mesh)
    return model


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(nn.Sequential(nn.Linear(4, 1)), mesh, {"0": ColwiseParallel()})


def deepspeed(mesh: DeviceMesh) -> nn.Module:
    class DeepSpeedEngine(nn.Module):
        """As deepspeed.initialize returns it. gpq recognises its name, because the package is not installed."""

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 1)

    return DeepSpeedEngine()


MODELS: list[tuple[Callable[[DeviceMesh], nn.Module], str]] = [
    (fsdp, r"FullyShardedDataParallel \(FSDP\)"),
    (fsdp_within, r"FullyShardedDataParallel \(FSDP\)"),
    (fully_sharded, r"fully_shard \(FSDP2\)"),
    (tensor_parallel, "DTensor"),
    (deepspeed, "DeepSpeed"),
]


def job(replicas: int = 1) -> Job:
    return Job(Environment(replicas=replicas), torch.device("cpu"), 0, {})


@pytest.mark.filterwarnings("ignore")  # torch's own warning about FSDP on CPUs
@pytest.mark.parametrize(("make", "what"), MODELS)
def test_a_sharded_model_is_refused_with_what_works_instead(
    mesh: DeviceMesh, make: Callable[[DeviceMesh], nn.Module], what: str
) -> None:
    model = make(mesh)
    this = job()
    this.loader(Examples(10), batch_size=5)
    tries: list[Callable[[], Any]] = [
        lambda: this.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        lambda: this.wrap(model),
        lambda: refuse_sharded([nn.Linear(1, 1), model]),
    ]
    for attempt in tries:
        with pytest.raises(GpqTrainError, match=what) as caught:
            attempt()
        said = f"{caught.value.message}; {caught.value.hint}"
        assert "use job.wrap" not in said
        assert "gpq submit --gpus N -- torchrun --nproc-per-node N train.py" in said
        assert "job.should_stop()" in said
        assert "\n" not in said


COMPILED = """
import sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from gpq_agent.train.loop.setup import refuse_sharded
from tests.agent.train.test_refusals import fully_sharded
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
refuse_sharded([torch.compile(fully_sharded(init_device_mesh("cpu", (1,))))])
"""


def test_a_compiled_sharded_model_is_refused_too(tmp_path: Path) -> None:
    """Runs in a separate process, because torch.compile's modules stay loaded."""
    command = [sys.executable, "-c", COMPILED, str(tmp_path / "store")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "GpqTrainError: " in ended.stderr
    assert "fully_shard (FSDP2)" in ended.stderr


@pytest.mark.filterwarnings("ignore")
def test_a_sharded_optimizer_is_refused_too(mesh: DeviceMesh) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(4, 1)
    sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    this = job()
    this.loader(Examples(10), batch_size=5)
    with pytest.raises(GpqTrainError, match="ZeroRedundancyOptimizer"):
        this.prepare(model, sharded)
    whole = fully_sharded(mesh)
    with pytest.raises(GpqTrainError, match="DTensor"):
        refuse_sharded(torch.optim.SGD(whole.parameters(), lr=0.1))


def test_models_and_optimizers_that_are_not_sharded_are_accepted(mesh: DeviceMesh) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    refuse_sharded(plain, torch.optim.Adam(plain.parameters()))
    refuse_sharded(nn.parallel.DistributedDataParallel(plain), [torch.optim.SGD(plain.parameters(), lr=0.1)])
    refuse_sharded([plain, nn.Linear(1, 1)], None)


def test_a_model_whose_state_dict_the_script_has_replaced_is_refused_before_it_trains() -> None:
    model, this = nn.Linear(4, 1), job()
    model.state_dict = dict  # type: ignore[assignment]
    this.loader(Examples(10), batch_size=5)
    with pytest.raises(GpqTrainError, match="the script has replaced state_dict"):
        this.prepare(this.wrap(model), torch.optim.SGD(model.parameters(), lr=0.1))
