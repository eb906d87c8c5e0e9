"""What the loops train on: examples, small models, and the set-up that most of them share. All of it is deterministic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from .shapes import BATCH

EPOCHS = 3
SIZE = 203  # 12 steps of 16 and a tail of 11
FIRST_SECONDS, STEP_SECONDS, ORDERED_SECONDS, SETTLED = 0.15, 0.02, 0.05, 0.15


class Pacer:
    """Called at each fetch. After so many steps it asks for a stop by `order`, and waits long enough for the library to see it.

    The library looks for orders about every fifth of a second, so steps are slow when an order will come.
    """

    def __init__(self) -> None:
        self.per_step = BATCH
        self.stop_after: int | None = None
        self.order: Callable[[], None] = lambda: None
        self._fetched = 0

    def fetched(self) -> None:
        if self.stop_after is None:
            return
        step, rest = divmod(self._fetched, self.per_step)
        self._fetched += 1
        if rest:
            return
        if step == self.stop_after:
            self.order()
            time.sleep(SETTLED)
        else:
            time.sleep(self._pause(step))

    def _pause(self, step: int) -> float:
        if step == 0:
            return FIRST_SECONDS
        return STEP_SECONDS if step < (self.stop_after or 0) else ORDERED_SECONDS


PACER = Pacer()


class Examples(Dataset[Any]):
    """Example i of a fixed regression problem: (x_i, y_i), with 6 numbers and 1 number."""

    def __init__(self, size: int = SIZE) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = self.x[:, :3].prod(dim=1, keepdim=True).tanh() + 0.5 * self.x[:, 3:4]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        PACER.fetched()
        return self.x[index], self.y[index]


class Sentences(Dataset[Any]):
    """Sequences of 3 to 12 tokens out of 11, padded with -1: (input, target), 12 integers each."""

    def __init__(self, size: int = SIZE) -> None:
        generator = torch.Generator().manual_seed(6)
        self.tokens = torch.randint(0, 11, (size, 13), generator=generator)
        self.tokens[:, 2::2] = (self.tokens[:, 1:-1:2] + self.tokens[:, 0:-2:2]) % 11
        self.lengths = torch.randint(3, 13, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        PACER.fetched()
        given, wanted = self.tokens[index, :-1], self.tokens[index, 1:].clone()
        wanted[self.lengths[index] :] = -1
        return given, wanted


def net(seed: int = 1, inputs: int = 6, outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))


class Reader(nn.Module):
    """A very small transformer: one causal layer over 11 tokens."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(11, 16)
        self.place = nn.Parameter(0.1 * torch.randn(12, 16))
        self.norm = nn.LayerNorm(16)
        self.query, self.value = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = self.embed(given) + self.place
        y = self.norm(x)
        x = x + nn.functional.scaled_dot_product_attention(self.query(y), y, self.value(y), is_causal=True)
        return self.head(x)  # type: ignore[no-any-return]


def sgd(parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def adamw(parameters: Any, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)


def usual(
    gpq: Any,
    options: dict[str, Any],
    make: Callable[[Any], Any] = sgd,
    model: nn.Module | None = None,
    size: int = SIZE,
) -> tuple[Any, Any, Any, Any]:
    """The head of an ordinary script: job, loader, model and optimizer, prepared."""
    job = gpq.init()
    loader = job.loader(Examples(size), batch_size=BATCH, **options)
    wrapped = job.wrap(net() if model is None else model)
    optimizer = make(wrapped.parameters())
    wrapped, optimizer, _ = job.prepare(wrapped, optimizer)
    return job, loader, wrapped, optimizer
