"""The processes of the noise-scale tests: a tiny model, real gloo groups and the real probe. Nothing is judged here."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from gpq_agent.train.data.batches import Configuration, Limits, Micro, Step, shape_step, starting
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.accumulator import Accumulator, listen
from gpq_agent.train.gradients.batch_norm import GroupedNorms
from gpq_agent.train.gradients.lr_rules import Adjustment
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.gradients.reducer import Reducer
from gpq_agent.train.gradients.step_gate import StepGate, wrap_scaler
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

EXAMPLES = 1024
STEPS = 2000
GROWTH = 250  # the loss scale of a trial doubles after this many steps
GROUP = 16  # of batch norm
VARIANTS = [(name, micro, loop) for loop in ("bare", "habits") for name in ("sgd", "adamw") for micro in (1, 2)]
GROUPED = [("sgd", 1, "groups"), ("adamw", 2, "groups")]
# Replicas spend more time waiting for each other than computing, so larger numbers of replicas measure fewer variants.
HALF = [(name, micro, loop) for name, micro, loop in VARIANTS if (loop == "habits") == (micro == 2)]
CORNERS = [("sgd", 1, "bare"), ("adamw", 2, "habits")]


def variants(replicas: int) -> list[tuple[str, int, str]]:
    """What one, two or four replicas measure."""
    return {1: VARIANTS + GROUPED, 2: HALF + GROUPED, 4: CORNERS}[replicas]


def label(name: str, micro: int, loop: str) -> str:
    """The name of a variant in the results."""
    return f"{name}-{micro}-{loop}"


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """A regression with noise in its targets, so that gradients differ between examples but agree on a direction."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(EXAMPLES, 12, generator=generator)
    targets = torch.sin(inputs[:, :1] * 2) + inputs[:, 1:2] + 1.0 + 0.5 * torch.randn(EXAMPLES, 1, generator=generator)
    return inputs, targets


def model(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    middle = nn.Sequential(nn.BatchNorm1d(16), nn.Tanh()) if norm else nn.Tanh()
    first = nn.Linear(12, 16)
    first.weight.data = first.weight.data.t().contiguous().t()  # dense, but not row by row
    return nn.Sequential(first, middle, nn.Linear(16, 1))


def loss_of(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(net(inputs), targets)


def make_optimizer(name: str, net: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.02)
    return torch.optim.AdamW(net.parameters(), lr=0.0005)


def train_a_little(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take 25 steps on fixed batches, the same in every process. Then Adam's moments are ripe but the gradient is not
    yet small."""
    inputs, targets = data()
    for step in range(25):
        part = slice(step % 16 * 64, step % 16 * 64 + 64)
        optimizer.zero_grad()
        loss_of(net, inputs[part], targets[part]).backward()
        optimizer.step()
    optimizer.zero_grad()


def exact(net: nn.Module, optimizer: torch.optim.Optimizer, size: int = 1) -> tuple[float, float]:
    """Return (squared gradient, trace of the covariance of one example's gradient), from per-example gradients of the
    whole data set. With batch norm, from those of groups of `size`: the data set is dealt 64 times."""
    inputs, targets = data()
    parameters = list(net.parameters())
    generator = torch.Generator().manual_seed(5)
    orders = [torch.randperm(EXAMPLES, generator=generator) for _ in range(64 if size > 1 else 1)]
    rows = []
    for group in torch.cat(orders).split(size):
        loss = loss_of(net, inputs[group], targets[group])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double())
    gradients = torch.stack(rows)
    if isinstance(optimizer, torch.optim.AdamW):
        second = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in parameters]).double()
        second /= 1 - 0.999**25
        floor = max(1e-8, 0.01 * float(second.mean().sqrt()))
        weights = 1 / (second.sqrt() + floor)
        gradients *= weights / weights.mean()
    mean = gradients.mean(dim=0)
    return float(mean @ mean), size * float((gradients - mean).square().sum() / (len(rows) - 1))


class Told:
    """What the gate asks the engine, at the base batch size. `seen`: reports from the gate that could be a habit."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def adjustment(self, optimizer: Any) -> Adjustment:
        return Adjustment(1.0, 1.0)

    def stepped(self, applied: bool) -> None:
        pass

    def report(self, code: str) -> None:
        self.seen.append(code)

    def rate_set(self) -> None:
        self.seen.append("settings")

    def alone(self, code: str) -> None:
        raise AssertionError("no loop here has a closure or sets gradients")

    def outside(self) -> None:
        raise AssertionError("every step here is inside the loop")


class Loop:
    """One training loop of this process. The caller announces micro-batches like the engine, and torch reports the
    passes."""

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, scale: NoiseScale, rank: int = 0, replicas: int = 1
    ) -> None:
        self.net, self.optimizer, self.scale = net, optimizer, scale
        self.rank, self.replicas = rank, replicas
        self.model: Any = DistributedDataParallel(net) if replicas > 1 else net
        self.probe = GradientProbe([optimizer], scale, replicas)
        reducer = Reducer([self.model], self.probe, None, replicas) if replicas > 1 else None
        self.gradients = Accumulator([optimizer], self.probe, reducer)
        self.told = Told()
        self.gate = StepGate([optimizer], self.gradients, self.told, self.told.report, self.told.rate_set)
        listen(self.gradients)

    def begin(self, step: Step) -> None:
        """Called before the first micro-batch of an optimizer step."""
        self.probe.arm(
            sampled=step.sampled, micro_batches=len(step.micros), examples=step.total, inverse=step.inverse or 1.0
        )

    def enter(self, step: Step, place: int) -> None:
        """Called before the forward pass of a micro-batch."""
        self.gradients.enter(step.micros[place])
        self.gate.enter(step.micros[place])

    def leave(self, step: Step, place: int) -> None:
        """Called after the body of the loop."""
        self.gate.leave()
        self.gradients.leave(drop=False)
        if step.micros[place].last:
            self.probe.finish()

    def micro_batches(self, step: Step) -> Iterator[int]:
        """Run all micro-batches of a step in order."""
        self.begin(step)
        for place in range(len(step.micros)):
            self.enter(step, place)
            yield place
            self.leave(step, place)


class Trial:
    """One optimizer and number of micro-batches at fixed weights. Each epoch draws its examples without replacement.

    `loop`: "habits" if the body scales its losses, unscales and clips with torch's own tools, and steps. "groups" if
    the model has batch norm over groups.
    """

    def __init__(self, rank: int, replicas: int, name: str, micro: int, loop: str) -> None:
        self.group = GROUP if loop == "groups" else 0
        net = model(norm=self.group > 0)
        optimizer = make_optimizer(name, net)
        train_a_little(net, optimizer)
        self.exact_sqr, self.exact_var = exact(net, optimizer, self.group or 1)
        self.norms = GroupedNorms()
        if self.group:
            self.norms.convert(net, self.group)
            self.norms.collect([net], None)
        self.scale = NoiseScale(32, EXAMPLES, window=10**12)
        self.loop = Loop(net, optimizer, self.scale, rank, replicas)
        batch = 128 // replicas
        if replicas == 1:  # without accumulation the single replica splits its batch in two on sampled steps
            micro, batch = 2 * micro, 64
        self.total = batch * replicas * micro
        limits = Limits(self.total, self.total, batch, replicas, group=self.group)
        self.step = shape_step(
            0, 0, range(self.total), starting(limits), replicas, rank, sample=True, most=batch, group=self.group
        )
        assert self.step.counts == [batch] * micro
        self.inputs, self.targets = data()
        self.generator = torch.Generator().manual_seed(11)
        self.order = torch.empty(0, dtype=torch.long)
        # The loss scale grows during the measurement, as it does in a long run.
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=GROWTH) if loop == "habits" else None
        )
        if self.scaler is not None:
            wrap_scaler(self.scaler, self.loop.gate)
        self.clipped = 0
        self.kept = [(item, item.clone()) for item in self.changing()]

    @property
    def micro(self) -> int:
        return len(self.step.micros)

    def changing(self) -> list[torch.Tensor]:
        """Everything that a step of the optimizer changes."""
        optimizer = self.loop.optimizer
        states = [value for each in optimizer.state.values() for value in each.values()]
        return [item.detach() for item in self.loop.net.parameters()] + [
            item for item in states if isinstance(item, torch.Tensor)
        ]

    def begin(self) -> None:
        if len(self.order) < self.total:
            self.order = torch.randperm(EXAMPLES, generator=self.generator)
        self.taken, self.order = self.order[: self.total], self.order[self.total :]
        if self.scaler is not None:
            self.loop.probe.set_scale(self.scaler.get_scale() if self.scaler._scale is None else self.scaler._scale)
        self.loop.begin(self.step)

    def loss(self, place: int) -> torch.Tensor:
        """The loss of this replica's part of micro-batch `place`."""
        self.loop.enter(self.step, place)
        part = self.taken[list(self.step.micros[place].indices)]
        self.norms.enter(len(part))
        loss = loss_of(self.loop.model, self.inputs[part], self.targets[part])
        return loss if self.scaler is None else self.scaler.scale(loss)

    def close(self, place: int) -> None:
        """What the body of the loop does after the backward pass."""
        optimizer = self.loop.optimizer
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(self.loop.net.parameters(), 1e-3)
            self.clipped += int(norm > 1e-3)
            self.scaler.step(optimizer)
            self.scaler.update()
            if place == self.micro - 1:
                for item, before in self.kept:
                    item.copy_(before)
        optimizer.zero_grad()
        self.norms.leave(drop=False)
        self.loop.leave(self.step, place)

    def result(self) -> dict[str, float]:
        return {
            "sqr": self.scale.sqr / self.exact_sqr,
            "var": self.scale.var / self.exact_var,
            "samples": self.scale.samples / (self.total * STEPS),
            "preconditioned": float(self.scale.preconditioned),
            "clipped": self.clipped / STEPS,
            "growth": self.scaler.get_scale() / 1024.0 if self.scaler is not None else 1.0,
            "told": float(len(self.loop.told.seen)),
        }


def frozen(rank: int, replicas: int) -> dict[str, Any]:
    """Average statistics of the variants over STEPS steps.

    The models are independent, but their backward passes run together. Steps this small mostly wait for the other
    replicas.
    """
    trials = {label(*variant): Trial(rank, replicas, *variant) for variant in variants(replicas)}
    most = max(trial.micro for trial in trials.values())
    for step in range(STEPS):
        for trial in trials.values():
            trial.begin()
        for turn in range(most):
            running = [(trial, turn - most + trial.micro) for trial in trials.values() if turn >= most - trial.micro]
            torch.stack([trial.loss(place) for trial, place in running]).sum().backward()
            for trial, place in running:
                trial.close(place)
        if step % 100 == 99:
            for trial in trials.values():
                trial.loop.probe.collect()
    return {name: trial.result() for name, trial in trials.items()}


def accuracy(rank: int, replicas: int, folder: str, port: int) -> None:
    """Measure the variants for one number of replicas, with one start of the processes."""
    torch.set_num_threads(1)
    if replicas > 1:
        join(rank, replicas, port)
    results = frozen(rank, replicas)
    if replicas == 2:
        results["behaviour"] = behaviour(rank, replicas)
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    if replicas > 1:
        # If the interpreter shuts down while a gloo thread releases its last tensor, the process aborts.
        os._exit(0)


def join(rank: int, replicas: int, port: int) -> None:
    # pinned, because replicas that move between few cores wait much longer for each other
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)


def behaviour(rank: int, replicas: int) -> dict[str, Any]:
    """Facts about the hook that need two replicas. Each is a number or a line that the tests judge."""
    return {
        "uneven": uneven_gradient_error(rank),
        "half": half_precision_ratio(rank),
        "broken": steps_left_after_overflow(rank),
        "scaled": loss_scale_ratio(rank),
        "updated": loss_scale_ratio(rank, updated=True),
        "ready": ready_within_backward(rank),
        "twice": notice_of_two_passes(rank),
        "taken": refusal_of_a_taken_hook(rank, replicas),
        "unused": notice_of_a_bypassed_model(rank, replicas),
    }


def loop_of_two(rank: int, dtype: torch.dtype = torch.float32) -> Loop:
    net = model().to(dtype)
    return Loop(net, make_optimizer("sgd", net), NoiseScale(8, EXAMPLES), rank, 2)


def flat_gradient(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1).clone() for p in net.parameters() if p.grad is not None])


def step_of(counts: list[int], total: int, *, sampled: bool, inverse: float = 0.0, replicas: int = 1) -> Step:
    """A step in which this replica has micro-batches of these sizes."""
    shape = Configuration(0, max(counts), len(counts) - 1, total)
    in_pieces = replicas > 1 or len(counts) > 1
    micros = [
        Micro(place, place == len(counts) - 1, in_pieces, replicas * count / total, range(count), range(count))
        for place, count in enumerate(counts)
    ]
    return Step(0, 0, total, micros, shape, sampled, inverse=inverse)


def uneven_gradient_error(rank: int) -> float:
    """Relative error of a step over 11 examples, split 3 + 3 and 3 + 2 between replicas and micro-batches."""
    inputs, targets = data()
    reference = model()
    loss_of(reference, inputs[:11], targets[:11]).backward()
    expected = flat_gradient(reference)
    loop = loop_of_two(rank)
    parts = [(slice(0, 3), slice(6, 9)), (slice(3, 6), slice(9, 11))][rank]
    counts = [part.stop - part.start for part in parts]
    for place in loop.micro_batches(step_of(counts, 11, sampled=False, replicas=2)):
        loss_of(loop.model, inputs[parts[place]], targets[parts[place]]).backward()
    return float((flat_gradient(loop.net) - expected).norm() / expected.norm())


def one_step(
    loop: Loop, factor: float = 1.0, passes: int = 1, scale: torch.Tensor | None = None
) -> tuple[float, float]:
    """One step over 64 examples per replica. Returns when its last backward pass began and ended.

    `scale` is doubled in place after the step, like GradScaler.update() does.
    """
    inputs, targets = data()
    dtype = next(loop.net.parameters()).dtype
    part = slice(loop.rank * 64, loop.rank * 64 + 64)
    for _ in loop.micro_batches(step_of([64], 128, sampled=True, inverse=1 / 64, replicas=2)):
        for _ in range(passes):
            loss = loss_of(loop.model, inputs[part].to(dtype), targets[part].to(dtype)) * factor
            began = perf_counter()
            loss.backward()
            ended = perf_counter()
        if scale is not None:
            scale.mul_(2.0)
        loop.net.zero_grad()
    return began, ended


def half_precision_ratio(rank: int) -> float:
    """The trace from bfloat16 gradients divided by the trace from fp32. Squares taken in bfloat16 would be off by far
    more."""
    traces = []
    for dtype in (torch.bfloat16, torch.float32):
        loop = loop_of_two(rank, dtype)
        one_step(loop)
        loop.probe.collect()
        traces.append(loop.scale.var)
    return traces[0] / traces[1]


def steps_left_after_overflow(rank: int) -> float:
    """Count the examples after one good step and one step whose gradients are infinite in replica 1 only."""
    loop = loop_of_two(rank)
    one_step(loop)
    one_step(loop, float("inf") if rank == 1 else 1.0)
    loop.probe.collect()
    return loop.scale.samples / 128


def loss_scale_ratio(rank: int, *, updated: bool = False) -> float:
    """The trace with a loss scale of 1024, given as a tensor, divided by the trace without one.

    `updated`: the scale changes before the body of the loop ends.
    """
    traces = []
    for factor in (1024.0, 1.0):
        loop = loop_of_two(rank)
        scale = torch.tensor(factor)
        loop.probe.set_scale(scale)
        one_step(loop, factor, scale=scale if updated and factor > 1.0 else None)
        loop.probe.collect()
        traces.append(loop.scale.var)
    return traces[0] / traces[1]


def ready_within_backward(rank: int) -> bool:
    loop = loop_of_two(rank)
    began, ended = one_step(loop)
    return began < loop.probe.last_ready < ended


def notice_of_two_passes(rank: int) -> dict[str, Any]:
    """Two passes in a step that is not split give a notice and no estimate."""
    loop = loop_of_two(rank)
    one_step(loop)
    one_step(loop, passes=2)
    one_step(loop)
    loop.probe.collect()
    return {"notice": loop.probe.notice, "samples": loop.scale.samples}


def notice_of_a_bypassed_model(rank: int, replicas: int) -> dict[str, dict[str, Any]]:
    """A model in which DDP looks for unused parameters, in a job that may and in one that may not change its batch."""
    said = {}
    for fixed in (False, True):
        gc.collect()
        job = Job(Environment(rank=rank, replicas=replicas, launched=True), torch.device("cpu"), 0, {})
        data_set = TensorDataset(*(item[:256] for item in data()))
        loader = job.loader(data_set, batch_size=16, max_batch_size=64, max_local_batch=4, fixed_batch=fixed)
        wrapped = DistributedDataParallel(model(), find_unused_parameters=True)
        optimizer = make_optimizer("sgd", wrapped)
        job.prepare(wrapped, optimizer)
        for _ in job.epochs(1):
            for inputs, targets in loader:
                loss_of(wrapped, inputs, targets).backward()
                optimizer.step()
                optimizer.zero_grad()
        said["fixed" if fixed else "adaptive"] = job._engine.loop._setup.probe.notice
    return said


def refusal_of_a_taken_hook(rank: int, replicas: int) -> str:
    """A model with a hook of the user."""
    job = Job(Environment(rank=rank, replicas=replicas, launched=True), torch.device("cpu"), 0, {})
    job.loader(TensorDataset(*data()), batch_size=16)
    wrapped = DistributedDataParallel(model())
    wrapped.register_comm_hook(None, allreduce_hook)
    try:
        job.prepare(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.0))
    except GpqTrainError as error:
        return error.message
    return ""
