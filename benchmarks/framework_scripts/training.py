"""What the three scripts share: model, data, settings, and a record of what optimizers applied."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset

EXAMPLES, EPOCHS = 1200, 2
PER_DEVICE, ACCUMULATION = 2, 2
RATE = 0.01


class Settings(NamedTuple):
    """out: folder of all attempts. stop_after: steps until upstream's own checkpoint, 0: none."""

    out: str
    gpq: bool
    attempt: int
    stop_after: int = 0
    width: int = 16
    epochs: int = EPOCHS

    @property
    def state(self) -> Path:
        """Where a script keeps upstream's checkpoints."""
        return Path(self.out) / "state"


SETTINGS = Settings(**json.loads(sys.argv[1]))


class Record:
    """One line for each step that an optimizer applied on this replica.

    weights: a parameter whose gradient is the weight of each example in the step.
    """

    def __init__(self, rank: int) -> None:
        self.epoch = 0
        self.steps = 0
        self.weights = torch.nn.Parameter(torch.zeros(EXAMPLES))
        path = Path(SETTINGS.out) / f"steps.{SETTINGS.attempt}.{rank}"
        self._file = path.open("w", buffering=1)
        register_optimizer_step_post_hook(self._stepped)

    @property
    def is_over(self) -> bool:
        """Must upstream stop after this step?"""
        return 0 < SETTINGS.stop_after <= self.steps

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        self.steps += 1
        assert self.weights.grad is not None
        examples = self.weights.grad.nonzero().flatten()
        weights = self.weights.grad[examples]
        line = {
            "epoch": self.epoch,
            "rate": float(optimizer.param_groups[0]["lr"]),
            "seen": examples.repeat_interleave((weights / weights.median()).round().int()).tolist(),
            "time": now,
            "cpu": cpu,
        }
        self._file.write(json.dumps(line) + "\n")


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """16 random features, and a label that is a function of them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(EXAMPLES, 16, generator=generator)
        self.y = self.x.sin().sum(1, keepdim=True)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index], "ids": torch.tensor(index)}


class Model(torch.nn.Module):
    def __init__(self, record: Record) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = SETTINGS.width
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, 1),
        )
        self.weights = record.weights

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        loss = torch.nn.functional.mse_loss(self.layers(x), labels)
        return {"loss": loss + self.weights[ids].mean()}


def save_weights(model: Model) -> None:
    torch.save(model.state_dict(), Path(SETTINGS.out) / "weights.pt")
