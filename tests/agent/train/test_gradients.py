"""On several replicas, every step's gradient equals that of one process over the same examples, up to rounding."""

import copy
import gc
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpq_agent.train.data.order import permutation
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.ports import free_port

from .driver import FORKSERVER

SIZE = 47
MODES = (
    "plain", "at-step", "compiled", "unused", "bucket-view", "scaler", "clip", "two-losses", "weighed",
    "static-graph", "strided",
)  # fmt: skip
VARIANTS = (
    (47, 64),
    (11, 2),
    (13, 3),
    (1, 1),
)  # (batch size, most examples at once): tails, empty shares and uneven shares
LONGEST = 600.0  # seconds for the test, which trains about fifty times on three replicas
# Every mode with every variant. Each mode and each variant has both fixed and adaptive batches.
CASES = [
    (mode, batch, local, (row + column) % 2 == 0)
    for row, mode in enumerate(MODES)
    for column, (batch, local) in enumerate(VARIANTS)
]


class Net(nn.Module):
    """Regression in double precision. With `skip`, `idle` gets no gradient."""

    def __init__(self, *, skip: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
        self.idle = nn.Linear(5, 1).double()
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.body(x)
        return answer if self.skip else answer + self.idle(x)


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SIZE, 5, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, x.prod(dim=1, keepdim=True).tanh())


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])


def expected(skip: bool, start: int, total: int) -> torch.Tensor:
    """One process computes the whole batch of the step at once."""
    reference = Net(skip=skip)
    x, y = data().tensors
    index = permutation(0, 0, SIZE, shuffle=True)[start : start + total]
    nn.functional.mse_loss(reference(x[index]), y[index]).backward()
    return flat(reference)


def wrapped(mode: str, net: Net) -> nn.Module:
    # Several buckets, except where the compiler splits the model after DDP did.
    options: dict[str, Any] = {} if mode == "compiled" else {"bucket_cap_mb": 0.0001}
    if mode == "unused":
        options["find_unused_parameters"] = True
    if mode == "static-graph":
        options["static_graph"] = True
    if mode == "bucket-view":
        options["gradient_as_bucket_view"] = True
    return DistributedDataParallel(net, **options)


# Habits that each mode has.
ALLOWED = {"two-losses": {"two-passes"}}


def worst_error(rank: int, replicas: int, mode: str, batch: int, local: int, fixed: bool, folder: str) -> float:
    """Largest relative error of the step gradients in one epoch with constant weights. There is a trial in it.

    Two backward passes in a body cost one step in micro-batches, then gpq keeps the others in one piece.
    """
    gc.collect()  # do not take leftovers of the previous job for this one's
    skip = mode == "unused"
    environment = Environment(rank=rank, replicas=replicas, launched=True, run_dir=folder)
    job = Job(environment, torch.device("cpu"), 0, {})
    loader = job.loader(data(), batch_size=batch, max_local_batch=local, fixed_batch=fixed)
    net = Net(skip=skip)
    if mode == "strided":  # dense, but not row by row, as weights of convolutions in channels_last
        for layer in (net.body[0], net.body[2], net.idle):
            layer.weight.data = layer.weight.data.t().contiguous().t()
    if mode == "compiled":
        net.forward = torch.compile(net.forward, backend="aot_eager")  # type: ignore[method-assign]
    model = wrapped(mode, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if mode == "scaler" else None
    job.prepare(model, optimizer, scaler=scaler)
    worst, start, lost = 0.0, 0, 0
    for _ in job.epochs(1):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            if mode == "two-losses":
                (0.25 * loss).backward()
                loss = 0.75 * nn.functional.mse_loss(model(x), y)
            if mode == "weighed":
                job.weigh(2.5 * len(x))
            (scaler.scale(loss) if scaler else loss).backward()
            if mode == "clip":
                job.clip_grad_norm_(1e6)
            if mode == "at-step" and not job.at_step:
                continue
            if scaler is None:
                optimizer.step()
            else:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
            if job.at_step:
                step = job._engine.loop.step
                assert step is not None
                right = expected(skip, start, step.total)
                start += step.total
                if mode == "two-losses" and len(step.micros) > 1:
                    lost += 1
                else:
                    worst = max(worst, float((flat(net) - right).norm() / right.norm()))
            optimizer.zero_grad()
    assert start == SIZE
    assert lost <= 1
    known = set(job._engine.shape.freedoms._agreed)
    assert known <= ALLOWED.get(mode, set()), f"{mode}: {known} would prevent splitting"
    # Between steps a wrapped model reduces as usual, unless gpq removed its reducer.
    if isinstance(model, DistributedDataParallel):
        assert model.require_backward_grad_sync == (model.reducer is not None)
        assert model.reducer is not None or mode in ("unused", "static-graph")
        if mode in ("unused", "static-graph"):
            check_copies(model)
    return worst


def check_copies(model: DistributedDataParallel) -> None:
    """A copy and a file of a wrapped model are wrapped models of their own, whatever gpq did to the first one."""
    x = data().tensors[0]
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
        assert type(twin) is DistributedDataParallel
        assert (twin.require_backward_grad_sync, twin.reducer is not None) == (True, True)
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            next(twin.parameters()).add_(1.0)
        assert not torch.equal(twin(x), model(x))


def replica(rank: int, replicas: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # later collections need not scan objects older than the first job
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)
    errors = {
        f"{mode} {batch}/{local} {'fixed' if fixed else 'adaptive'}": worst_error(
            rank, replicas, mode, batch, local, fixed, folder
        )
        for mode, batch, local, fixed in CASES
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


def accumulated(rank: int, replicas: int, port: int, folder: str) -> None:
    """Largest relative error of gradients that the script accumulates over three batches, with model.no_sync()."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)
    errors = {}
    for mode, batch in (("plain", 8), ("bucket-view", 8), ("plain", 7)):  # all even but the tail, and none even
        gc.collect()
        job = Job(Environment(rank=rank, replicas=replicas, launched=True), torch.device("cpu"), 0, {})
        loader = job.loader(data(), batch_size=batch, fixed_batch=True)
        net = Net(skip=False)
        model = wrapped(mode, net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        job.prepare(model, optimizer)
        start, parts, sums = 0, list[tuple[int, int]](), list[tuple[list[tuple[int, int]], torch.Tensor]]()
        for _ in job.epochs(1):
            for place, (x, y) in enumerate(loader):
                total = job._engine.loop.step.total
                parts.append((start, total))
                start += total
                is_last = place % 3 == 2 or start == SIZE
                with nullcontext() if is_last else model.no_sync():
                    nn.functional.mse_loss(model(x), y).backward()
                if is_last:
                    sums.append((parts, flat(net).clone()))
                    parts = []
                    optimizer.step()
                    optimizer.zero_grad()
        assert start == SIZE
        assert model.reducer is not None, f"{mode} {batch}: gpq reduces for DDP"
        rights = [sum(expected(False, begin, total) for begin, total in parts) for parts, _ in sums]
        worst = max(
            float((found - right).norm() / right.norm()) for right, (_, found) in zip(rights, sums, strict=True)
        )
        errors[f"{mode} {batch}"] = worst
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


@contextmanager
def replicas_of(count: int, folder: Path, target: Callable[..., None] = replica) -> Iterator[list[Any]]:
    port = free_port()
    processes = [FORKSERVER.Process(target=target, args=(rank, count, port, str(folder))) for rank in range(count)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_every_step_has_the_gradient_of_one_process_over_its_examples(tmp_path: Path) -> None:
    count = 3
    with replicas_of(count, tmp_path) as processes:
        end = time.monotonic() + LONGEST
        for process in processes:
            process.join(max(end - time.monotonic(), 0.0))
        assert [process.exitcode for process in processes] == [0] * count
    for rank in range(count):
        errors = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(errors) == len(CASES)
        assert {name: error for name, error in errors.items() if not error < 1e-6} == {}, f"replica {rank}"


def test_gradients_that_a_script_keeps_with_no_sync_are_reduced_once_by_ddp(tmp_path: Path) -> None:
    with replicas_of(2, tmp_path, accumulated) as processes:
        for process in processes:
            process.join(LONGEST)
        assert [process.exitcode for process in processes] == [0, 0]
    for rank in range(2):
        errors = json.loads((tmp_path / f"{rank}.json").read_text())
        assert {name: error for name, error in errors.items() if not error < 1e-6} == {}, f"replica {rank}"
        assert len(errors) == 3
