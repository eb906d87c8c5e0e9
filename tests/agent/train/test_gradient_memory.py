"""Memory for gradients: one more copy while a step accumulates, and none at any other time."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpq_agent.train.gradients import reducer
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from .driver import DEADLINE, FORKSERVER, free_port

WIDTH = 128
LAYERS = 16
STEPS = 12  # of each kind, and the first two do not count
# Memory that does not grow with the model, as a fraction of a copy of the gradients. These are a layer's new gradient,
# the buffer being reduced, and the previous buffer, which a thread of gloo releases a little later.
SLACK = 5 / LAYERS

Clear = Callable[[nn.Module], None]
CLEARS: dict[str, Clear] = {
    "to none": lambda net: net.zero_grad(),
    "to zero": lambda net: net.zero_grad(set_to_none=False),
}


def network() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)], nn.Linear(WIDTH, 1))


def copy_bytes() -> int:
    return sum(item.numel() * item.element_size() for item in network().parameters())


def data(size: int) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(size, WIDTH, generator=generator), torch.randn(size, 1))


class Recording:
    """What torch's allocator hands out and takes back between enter and exit. The peaks are known after exit.

    Each process uses only one. With the profiler started and stopped at each step next to threads of gloo, a replica
    once died of SIGSEGV.
    """

    def __init__(self) -> None:
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._spans = 0
        self._peaks: dict[str, int] = {}

    def begin(self) -> None:
        gc.collect()
        self._mark("begin")

    def end(self) -> str:
        """Return the name of the span since `begin`."""
        name = self._mark("end")
        self._spans += 1
        return name

    def peak(self, span: str) -> int:
        """The most bytes in use at once in this span, beyond those before it."""
        return self._peaks[span]

    def __enter__(self) -> "Recording":
        self._profiler.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profiler.__exit__(*error)
        live = most = changes = 0
        events = self._profiler.profiler.kineto_results.events()
        for event in sorted(events, key=lambda event: event.start_ns()):
            name = event.name()
            if name == "[memory]":
                live += event.nbytes()
                most = max(most, live)
                changes += 1
            elif name.startswith("begin "):
                live = most = changes = 0
            elif name.startswith("end "):
                assert changes, "the profiler reports no allocations"
                self._peaks[name] = most

    def _mark(self, what: str) -> str:
        name = f"{what} {self._spans}"
        with record_function(name):
            pass
        return name


def plain(recording: Recording, clear: Clear, micro: int) -> str:
    """The third step of a loop that accumulates by hand."""
    net = network()
    model: Any = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = data(4).tensors

    def step() -> None:
        for place in range(micro):
            if dist.is_initialized():
                model.require_backward_grad_sync = place == micro - 1
            (nn.functional.mse_loss(model(x), y) / micro).backward()
        optimizer.step()
        clear(net)

    step()
    step()
    recording.begin()
    step()
    return recording.end()


def under_gpq(
    recording: Recording, clear: Clear, micro: int, *, split: bool = False, unused: bool = False
) -> list[str]:
    """The same under gpq: all steps of `micro` micro-batches except the first two.

    `split`: steps are split because one replica samples them. `unused`: gpq's own reduction replaces DDP's.
    """
    replicas = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if replicas > 1 else 0
    job = Job(Environment(rank=rank, replicas=replicas, launched=replicas > 1), torch.device("cpu"), 0, {})
    total = 4 * micro * replicas
    local = total if split else 4
    loader = job.loader(data(STEPS * total), batch_size=total, max_local_batch=local, fixed_batch=not split)
    net = network()
    model: Any = DistributedDataParallel(net, find_unused_parameters=unused) if replicas > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.prepare(model, optimizer)
    steps: list[tuple[int, str]] = []  # the number of micro-batches and the span of each step
    micros, pieces, running = 0, 0, False
    for _ in job.epochs(1):
        for x, y in loader:
            if micros == 0:
                if running:  # the step includes gpq's clean-up, which happens when the loop asks for the next batch
                    steps.append((pieces, recording.end()))
                running = True
                recording.begin()
            micros += 1
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            clear(net)
            if job.at_step:
                pieces, micros = micros, 0
        steps.append((pieces, recording.end()))
    assert len(steps) == STEPS
    assert not job._engine.shape.freedoms.lost
    return [span for pieces, span in steps[2:] if pieces == micro]


def kinds(replicas: int) -> dict[str, dict[str, Any]]:
    """What the test measures. Each name starts with the number of micro-batches."""
    cuts = [(f"{micro} micro-batches", {"micro": micro}) for micro in (1, 2, 3)]
    if replicas == 1:  # compare a step split for sampling with one split in two by hand
        ways = [*cuts, ("2 of a split step", {"micro": 2, "split": True})]
    else:
        ways = [
            (f"{name}, {whose}", {**cut, "unused": whose == "own"}) for name, cut in cuts for whose in ("ddp", "own")
        ]
    return {f"{name}, {cleared}": {"clear": clear, **way} for name, way in ways for cleared, clear in CLEARS.items()}


def replica(rank: int, replicas: int, port: int, folder: str) -> None:
    """Write how much more memory gpq needs than the plain loop, in copies of the gradients."""
    torch.set_num_threads(1)
    if replicas > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=replicas)
    gc.collect()
    gc.freeze()  # exclude torch's objects, because each step begins with a collection
    reducer.CHUNK = WIDTH * (WIDTH + 1)  # it reduces pieces of a fixed size, here the size of a layer
    with Recording() as recording:
        spans = {
            name: (under_gpq(recording, **kind), plain(recording, kind["clear"], kind["micro"]))
            for name, kind in kinds(replicas).items()
        }
    # Use the smallest peak, because a thread of gloo holds buffers longer in some steps.
    found = {
        name: (min(map(recording.peak, steps)) - recording.peak(step)) / copy_bytes()
        for name, (steps, step) in spans.items()
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if replicas > 1:
        dist.destroy_process_group()


@pytest.mark.parametrize("replicas", [1, 2])
def test_only_an_accumulating_step_needs_one_more_copy_of_the_gradients(replicas: int, tmp_path: Path) -> None:
    port = free_port()
    processes = [
        FORKSERVER.Process(target=replica, args=(rank, replicas, port, str(tmp_path))) for rank in range(replicas)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(DEADLINE)
        assert [process.exitcode for process in processes] == replicas * [0]
    finally:
        for process in processes:
            process.kill()
            process.join()
    for rank in range(replicas):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.keys() == kinds(replicas).keys()
        too_many = {name: more for name, more in found.items() if more > int(name[0] > "1") + SLACK}
        assert too_many == {}, f"replica {rank}"


def test_no_gradient_of_the_last_step_is_alive_in_a_forward_pass() -> None:
    job = Job(Environment(), torch.device("cpu"), 0, {})
    loader = job.loader(data(28), batch_size=4, fixed_batch=True)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    job.prepare(net, optimizer)
    storages: list[StorageWeakRef] = []
    alive: list[int] = []
    for _ in job.epochs(1):
        for x, y in loader:
            alive.append(sum(not storage.expired() for storage in storages))
            nn.functional.mse_loss(net(x), y).backward()
            storages = [
                StorageWeakRef(item.grad.untyped_storage()) for item in net.parameters() if item.grad is not None
            ]
            optimizer.step()
            optimizer.zero_grad()
    assert len(storages) == len(list(net.parameters()))
    assert alive == 7 * [0]
