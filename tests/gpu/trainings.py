"""The trainings of the checks: small data that show which examples were used, a model, and the loop
of the guide."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import gpq_agent.train as gpq
import torch

from .processes import CPU, device_environ

FEATURES = 32
EXAMPLES = 4000


class Examples(torch.utils.data.Dataset[Any]):
    """Example i of a fixed regression problem: (i, x_i, y_i, its weight)."""

    def __init__(self, size: int = EXAMPLES) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, FEATURES, generator=generator)
        self.y = self.x[:, :4].prod(dim=1, keepdim=True).tanh() + 0.1 * torch.randn(size, 1, generator=generator)
        self.weight = torch.randint(1, 20, (size,), generator=generator).float()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return index, self.x[index], self.y[index], self.weight[index]


class Plan(NamedTuple):
    """How to train. `optimizer`: sgd or adamw. `amp`: float16 with a GradScaler. `weighed`: by
    job.weigh."""

    optimizer: str = "sgd"
    amp: bool = False
    weighed: bool = False
    batch: int = 48
    most: int = 48  # examples at once
    largest: int = 192  # largest batch size that gpq may choose
    width: int = 64
    rate: float = 1e-3
    clip: bool = False


def network(width: int) -> torch.nn.Sequential:
    """Return the same weights on every device, because they are drawn on the CPU."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, width), torch.nn.Tanh(),
        torch.nn.Linear(width, width), torch.nn.Tanh(),
        torch.nn.Linear(width, 1),
    )  # fmt: skip


def losses(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).flatten()


def loss_of(model: Any, x: Any, y: Any, weight: Any, weighed: bool) -> Any:
    """The mean over the examples, or the weighted mean."""
    values = losses(model, x, y)
    return (values * weight).sum() / weight.sum() if weighed else values.mean()


def optimizer_of(plan: Plan, model: torch.nn.Module, device: torch.device) -> Any:
    if plan.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=plan.rate, momentum=0.9)
    fused: dict[str, Any] = {"fused": True} if device.type == "cuda" else {}
    return torch.optim.AdamW(model.parameters(), lr=plan.rate, **fused)


def scaler_of(device: torch.device) -> Any:
    return torch.amp.GradScaler(device.type)


class Pass(NamedTuple):
    """One micro-batch."""

    indices: list[int]
    sampled: bool
    loss: Any


class Enough(Exception):
    """The requested number of steps is done."""


def ignore(_: list[Pass]) -> None:
    """Do nothing."""


class Training:
    """A gpq job in this process. gpq reads the loop around it, which is the loop of the guide. That
    loop calls what a check does after a step."""

    def __init__(self, plan: Plan, folder: str | None = None) -> None:
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        self.plan = plan
        self.job = gpq.init(checkpoint_dir=folder)
        self.device = self.job.device
        self.data = Examples()
        self.loader = self.job.loader(
            self.data, batch_size=plan.batch, max_batch_size=plan.largest,
            max_local_batch=plan.most, pin_memory=self.device.type == "cuda",
        )  # fmt: skip
        self.layers = network(plan.width)
        self.model = self.job.wrap(self.layers)
        self.optimizer = optimizer_of(plan, self.model, self.device)
        self.scaler = scaler_of(self.device) if plan.amp else None
        self.job.prepare(self.model, self.optimizer, scaler=self.scaler)
        half = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        self._cast = (lambda: torch.autocast(self.device.type, dtype=half)) if plan.amp else contextlib.nullcontext

        self._passes: list[Pass] = []
        self._left = 0
        self._after: Callable[[list[Pass]], None] = ignore

    def run(self, count: int = 0, after: Callable[[list[Pass]], None] = ignore, epochs: int = 1000) -> None:
        """Run this many steps, or all epochs. Call `after` after each step, with its passes."""
        self._left, self._after = count, after
        with contextlib.suppress(Enough):
            self._loop(epochs)

    def _loop(self, epochs: int) -> None:
        for _ in self.job.epochs(epochs):
            for indices, *batch in self.loader:
                self._one(indices, batch)

    def _one(self, indices: Any, batch: list[Any]) -> None:
        x, y, weight = [part.to(self.device, non_blocking=True) for part in batch]
        loop = self.job._engine.loop
        assert loop is not None
        micro, step = loop.micro, loop.step
        if self.plan.weighed:
            self.job.weigh(float(batch[2].sum()))
        with self._cast():
            loss = loss_of(self.model, x, y, weight, self.plan.weighed)
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            if self.plan.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self._passes.append(Pass(indices.tolist(), step is not None and step.sampled, loss.detach()))
        if micro is not None and micro.last:
            passes, self._passes = self._passes, []
            self._after(passes)
            self._left -= 1
            if self._left == 0:
                raise Enough


def enter(device: str) -> None:
    """In a fresh fork: give this process this GPU, as a job would have it, or none."""
    os.environ.update(device_environ(device))
    if device == CPU:
        os.environ.pop("GPQ_CORES", None)
    for name in [name for name in os.environ if name.startswith("GPQ_") and name != "GPQ_DEVICES"]:
        del os.environ[name]
