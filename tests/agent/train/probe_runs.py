"""What the processes of the noise-scale tests run: a tiny model, real gloo groups, the real probe. Judges nothing."""

import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from gpq_agent.train.noise_scale import NoiseScale
from gpq_agent.train.probe import GradientProbe
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = 1024
STEPS = 2000
VARIANTS = [(name, micro) for name in ("sgd", "adamw") for micro in (1, 2)]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """A regression with noise in its targets, so that gradients differ between examples but agree on a direction."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(EXAMPLES, 12, generator=generator)
    targets = torch.sin(inputs[:, :1] * 2) + inputs[:, 1:2] + 1.0 + 0.5 * torch.randn(EXAMPLES, 1, generator=generator)
    return inputs, targets


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(net(inputs), targets)


def make_optimizer(name: str, net: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.02)
    return torch.optim.AdamW(net.parameters(), lr=0.0005)


def train_a_little(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """25 steps on fixed batches, the same in every process: Adam's moments are ripe, the gradient is not yet small."""
    inputs, targets = data()
    for step in range(25):
        part = slice(step % 16 * 64, step % 16 * 64 + 64)
        optimizer.zero_grad()
        loss_of(net, inputs[part], targets[part]).backward()
        optimizer.step()
    optimizer.zero_grad()


def exact(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """(squared gradient, trace of the covariance) from per-example gradients of the whole data set."""
    inputs, targets = data()
    parameters = list(net.parameters())
    rows = []
    for index in range(EXAMPLES):
        loss = loss_of(net, inputs[index : index + 1], targets[index : index + 1])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double())
    gradients = torch.stack(rows)
    if isinstance(optimizer, torch.optim.AdamW):
        second = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in parameters]).double()
        second /= 1 - 0.999**25
        floor = max(1e-8, 0.01 * float(second.mean().sqrt()))
        weights = 1 / (second.sqrt() + floor)
        gradients *= weights / weights.mean()
    mean = gradients.mean(dim=0)
    return float(mean @ mean), float((gradients - mean).square().sum() / (EXAMPLES - 1))


class Trial:
    """One optimizer and number of micro-batches at fixed weights, examples drawn without replacement in each epoch."""

    def __init__(self, rank: int, replicas: int, name: str, micro: int) -> None:
        net = model()
        optimizer = make_optimizer(name, net)
        train_a_little(net, optimizer)
        self.exact_sqr, self.exact_var = exact(net, optimizer)
        self.rank, self.replicas, self.net = rank, replicas, net
        self.wrapped: Any = DistributedDataParallel(net) if replicas > 1 else net
        self.scale = NoiseScale(32, EXAMPLES, window=10**12)
        self.probe = GradientProbe(self.wrapped, optimizer, self.scale, replicas)
        self.micro, self.batch = micro, 128 // replicas
        if replicas == 1:  # without accumulation the single replica splits its batch in two on sampled steps
            self.micro, self.batch = 2 * micro, 64
        self.total = self.batch * replicas * self.micro
        self.inputs, self.targets = data()
        self.generator = torch.Generator().manual_seed(11)
        self.order = torch.empty(0, dtype=torch.long)

    def begin(self) -> None:
        if len(self.order) < self.total:
            self.order = torch.randperm(EXAMPLES, generator=self.generator)
        self.taken, self.order = self.order[: self.total], self.order[self.total :]
        self.probe.arm(sampled=True, micro_batches=self.micro, batch=self.batch)

    def loss(self, index: int) -> torch.Tensor:
        """The loss of this replica's part of micro-batch `index`."""
        block = self.batch * self.replicas
        part = self.taken[index * block : (index + 1) * block][self.rank :: self.replicas]
        self.probe.weight = 1.0 / self.micro
        if self.replicas > 1:
            self.wrapped.require_backward_grad_sync = index == self.micro - 1
        return loss_of(self.wrapped, self.inputs[part], self.targets[part])

    def result(self) -> dict[str, float]:
        return {
            "sqr": self.scale.sqr / self.exact_sqr,
            "var": self.scale.var / self.exact_var,
            "samples": self.scale.samples / (self.total * STEPS),
            "preconditioned": float(self.scale.preconditioned),
        }


def frozen(rank: int, replicas: int) -> dict[str, Any]:
    """Average statistics of all variants over STEPS steps.

    The models know nothing of one another, but go backwards together: waiting for the other replicas is most of the
    time of so small a step.
    """
    trials = {f"{name}-{micro}": Trial(rank, replicas, name, micro) for name, micro in VARIANTS}
    most = max(trial.micro for trial in trials.values())
    for step in range(STEPS):
        for trial in trials.values():
            trial.begin()
        for turn in range(most):
            running = [(trial, turn - most + trial.micro) for trial in trials.values() if turn >= most - trial.micro]
            torch.stack([trial.loss(index) for trial, index in running]).sum().backward()
            for trial, index in running:
                trial.probe.after_backward(last=index == trial.micro - 1)
        for trial in trials.values():
            trial.net.zero_grad()
            if step % 100 == 99:
                trial.probe.collect()
    return {name: trial.result() for name, trial in trials.items()}


def accuracy(rank: int, replicas: int, folder: str, port: int) -> None:
    """All variants for one number of replicas, in one start of the processes."""
    torch.set_num_threads(1)
    if replicas > 1:
        join(rank, replicas, port)
    results = frozen(rank, replicas)
    if replicas == 2:
        results["behaviour"] = behaviour(rank, replicas)
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    if replicas > 1:
        dist.destroy_process_group()


def join(rank: int, replicas: int, port: int) -> None:
    cores = sorted(os.sched_getaffinity(0))  # replicas that wander between few cores wait for one another far longer
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)


def behaviour(rank: int, replicas: int) -> dict[str, Any]:
    """Facts about the hook that need two replicas, each a number or a line that the tests judge."""
    return {
        "uneven": uneven_gradient_error(rank),
        "half": half_precision_ratio(rank),
        "broken": steps_left_after_overflow(rank),
        "scaled": loss_scale_ratio(rank),
        "ready": ready_within_backward(rank),
        "taken": notice_of_a_taken_hook(rank),
    }


def wrapped_probe() -> tuple[nn.Module, Any, GradientProbe]:
    net = model()
    wrapped = DistributedDataParallel(net)
    probe = GradientProbe(wrapped, make_optimizer("sgd", net), NoiseScale(8, EXAMPLES), 2)
    return net, wrapped, probe


def flat_gradient(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1).clone() for p in net.parameters() if p.grad is not None])


def uneven_gradient_error(rank: int) -> float:
    """Relative error of a step over 11 examples, split 3 + 3 and 3 + 2 between replicas and micro-batches."""
    inputs, targets = data()
    reference = model()
    loss_of(reference, inputs[:11], targets[:11]).backward()
    expected = flat_gradient(reference)
    net, wrapped, probe = wrapped_probe()
    probe.arm(sampled=False, micro_batches=2, batch=3)
    for index, parts in enumerate([(slice(0, 3), slice(3, 6)), (slice(6, 9), slice(9, 11))]):
        part = parts[rank]
        probe.weight = (part.stop - part.start) * 2 / 11
        wrapped.require_backward_grad_sync = index == 1
        loss_of(wrapped, inputs[part], targets[part]).backward()
        probe.after_backward(last=index == 1)
    return float((flat_gradient(net) - expected).norm() / expected.norm())


def one_step(rank: int, wrapped: Any, probe: GradientProbe, factor: float = 1.0) -> None:
    inputs, targets = data()
    dtype = next(wrapped.parameters()).dtype
    probe.arm(sampled=True, micro_batches=1, batch=64)
    part = slice(rank * 64, rank * 64 + 64)
    (loss_of(wrapped, inputs[part].to(dtype), targets[part].to(dtype)) * factor).backward()
    probe.after_backward(last=True)
    wrapped.zero_grad()


def half_precision_ratio(rank: int) -> float:
    """The trace from gradients in bfloat16 over that in fp32: squares of bfloat16 would be off by far more."""
    traces = []
    for dtype in (torch.bfloat16, torch.float32):
        net = model().to(dtype)
        wrapped = DistributedDataParallel(net)
        probe = GradientProbe(wrapped, make_optimizer("sgd", net), NoiseScale(8, EXAMPLES), 2)
        one_step(rank, wrapped, probe)
        probe.collect()
        traces.append(probe.scale.var)
    return traces[0] / traces[1]


def steps_left_after_overflow(rank: int) -> float:
    """Examples counted after one good step and one whose gradients are infinite in replica 1 alone."""
    _, wrapped, probe = wrapped_probe()
    one_step(rank, wrapped, probe)
    one_step(rank, wrapped, probe, float("inf") if rank == 1 else 1.0)
    probe.collect()
    return probe.scale.samples / 128


def loss_scale_ratio(rank: int) -> float:
    """The trace with a loss scale of 1024, given as a tensor, over that without."""
    traces = []
    for factor in (1024.0, 1.0):
        _, wrapped, probe = wrapped_probe()
        probe.grad_scale = torch.tensor(factor)
        one_step(rank, wrapped, probe, factor)
        probe.collect()
        traces.append(probe.scale.var)
    return traces[0] / traces[1]


def ready_within_backward(rank: int) -> bool:
    _, wrapped, probe = wrapped_probe()
    before = perf_counter()
    one_step(rank, wrapped, probe)
    return before < probe.last_ready < perf_counter()


def notice_of_a_taken_hook(rank: int) -> dict[str, Any]:
    """What a model with its user's own hook gets: a notice, no estimate, and still the mean of its micro-batches."""
    net = model()
    wrapped = DistributedDataParallel(net)
    wrapped.register_comm_hook(None, allreduce_hook)
    probe = GradientProbe(wrapped, make_optimizer("sgd", net), NoiseScale(8, EXAMPLES), 2)
    inputs, targets = data()
    probe.arm(sampled=True, micro_batches=2, batch=4)
    for index in range(2):
        part = slice(index * 8 + rank * 4, index * 8 + rank * 4 + 4)
        probe.weight = 0.5
        wrapped.require_backward_grad_sync = index == 1
        loss_of(wrapped, inputs[part], targets[part]).backward()
        probe.after_backward(last=index == 1)
    probe.collect()
    reference = model()
    loss_of(reference, inputs[:16], targets[:16]).backward()
    expected = flat_gradient(reference)
    error = float((flat_gradient(net) - expected).norm() / expected.norm())
    return {"notice": probe.notice, "samples": probe.scale.samples, "error": error}
