"""Memory of gradients: one more copy of them while a step accumulates, none at any other time."""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpq_agent.train import reducing
from gpq_agent.train.environment import Environment
from gpq_agent.train.session import Job
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from .driver import DEADLINE, FORKSERVER, free_port

WIDTH = 128
LAYERS = 16
# Of a copy of the gradients, for what does not grow with the model: a layer's gradient on its way, the buffer that is reduced,
# and the one before it, which a thread of gloo lets go of a little later.
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


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(96, WIDTH, generator=generator), torch.randn(96, 1))


class Peak:
    """Bytes that torch's allocator has given out at most between `begin` and `end`, beyond those before."""

    def begin(self) -> None:
        gc.collect()
        self._seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._seen.__enter__()

    def end(self) -> int:
        self._seen.__exit__(None, None, None)
        events = [each for each in self._seen.profiler.kineto_results.events() if each.name() == "[memory]"]
        assert events, "the profiler tells no allocations"
        live = most = 0
        for each in sorted(events, key=lambda event: event.start_ns()):
            live += each.nbytes()
            most = max(most, live)
        return most


def plain(net: nn.Module, clear: Clear, micro: int) -> int:
    """Peak of the third step of a loop that accumulates by hand."""
    model: Any = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = (item[:4] for item in data().tensors)

    def step() -> None:
        for place in range(micro):
            if dist.is_initialized():
                model.require_backward_grad_sync = place == micro - 1
            (nn.functional.mse_loss(model(x), y) / micro).backward()
        optimizer.step()
        clear(net)

    step()
    step()
    peak = Peak()
    peak.begin()
    step()
    return peak.end()


def under_gpq(net: nn.Module, clear: Clear, micro: int, *, split: bool = False, unused: bool = False) -> int:
    """The same under gpq: the steadiest of all steps of `micro` micro-batches but the first two (in some, a
    thread of gloo holds buffers for longer). `split`: they are cut because
    they are sampled on one replica; `unused`: gpq's own reduction takes the place of DDP's."""
    replicas = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if replicas > 1 else 0
    job = Job(Environment(rank=rank, replicas=replicas, launched=replicas > 1), torch.device("cpu"), 0, {})
    total = 4 * micro * replicas
    local = total if split else 4
    loader = job.loader(data(), batch_size=total, max_local_batch=local, fixed_batch=not split)
    model: Any = DistributedDataParallel(net, find_unused_parameters=unused) if replicas > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    job.prepare(model, optimizer)
    found = []  # (micro-batches, bytes) of each step
    peak, micros, pieces, running = Peak(), 0, 0, False
    for _ in job.epochs(1):
        for x, y in loader:
            if micros == 0:
                if running:  # gpq tidies up when the loop comes for the next batch: a part of the step
                    found.append((pieces, peak.end()))
                running = True
                peak.begin()
            micros += 1
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            clear(net)
            if job.at_step:
                pieces, micros = micros, 0
        found.append((pieces, peak.end()))
    assert len(found) == len(data()) // total
    assert not job._engine.freedoms.lost
    return min(most for pieces, most in found[2:] if pieces == micro)


def extra(clear: Clear, micro: int, **kind: bool) -> float:
    """How much more than the plain loop, in copies of the gradients. A split step stands against one in one piece."""
    return (under_gpq(network(), clear, micro, **kind) - plain(network(), clear, micro)) / copy_bytes()


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
def test_steps_in_one_piece_need_no_more_memory(clear: Clear) -> None:
    assert extra(clear, 1) <= SLACK


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
@pytest.mark.parametrize("micro", [2, 3])
def test_accumulating_steps_need_one_more_copy(clear: Clear, micro: int) -> None:
    assert extra(clear, micro) <= 1 + SLACK


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
def test_a_step_that_is_split_to_be_sampled_needs_one_more_copy(clear: Clear) -> None:
    assert extra(clear, 2, split=True) <= 1 + SLACK


def replica(rank: int, replicas: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)
    reducing.CHUNK = WIDTH * (WIDTH + 1)  # what it reduces at once is of a fixed size: here that of a layer
    found = {
        f"{micro} {name} {'own' if unused else 'ddp'}": extra(clear, micro, unused=unused)
        for micro in (1, 2, 3)
        for name, clear in CLEARS.items()
        for unused in (False, True)
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def test_several_replicas_need_one_more_copy_only_while_they_accumulate(tmp_path: Path) -> None:
    port = free_port()
    processes = [FORKSERVER.Process(target=replica, args=(rank, 2, port, str(tmp_path))) for rank in range(2)]
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
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        too_many = {name: more for name, more in found.items() if more > int(name[0] > "1") + SLACK}
        assert too_many == {}, f"replica {rank}"
