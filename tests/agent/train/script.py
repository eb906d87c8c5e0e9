"""A small training job that writes down all it does: run by torchrun, by plain Python, or in a forked replica.

Its only argument is a JSON object: see Settings. It writes one line per micro-batch to <out>/visits.<attempt>.<rank>.
"""

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import gpq_agent.train as gpq
import torch

SLOW = 0.3  # seconds of a micro-batch beyond the brake


@dataclass
class Settings:
    """What a test wants of the script."""

    out: str
    size: int = 203
    epochs: int = 3
    batch: int = 16
    max_batch: int = 64
    max_local: int = 16
    fixed: bool = False
    workers: int = 0
    optimizer: str = "sgd"
    rule: str = "auto"
    pace: float = 0.0  # seconds that a micro-batch takes at least, as if the model were larger
    evaluate: bool = False
    checkpoint_dir: str = ""


class Examples(torch.utils.data.Dataset[Any]):
    """Example i of a fixed regression problem: (i, x_i, y_i)."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = self.x.prod(dim=1, keepdim=True).tanh() + 0.1 * torch.randn(size, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return index, self.x[index], self.y[index]


def main(text: str) -> None:
    warnings.simplefilter("error")
    settings = Settings(**json.loads(text))
    job = gpq.init(checkpoint_dir=settings.checkpoint_dir or None)
    data = Examples(settings.size)
    loader = job.loader(
        data,
        batch_size=settings.batch,
        max_batch_size=settings.batch if settings.fixed else settings.max_batch,
        max_local_batch=settings.max_local,
        fixed_batch=settings.fixed,
        num_workers=settings.workers,
    )
    torch.manual_seed(1)
    model = job.wrap(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler, rule=settings.rule)
    if job.rank == 0:
        restored = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "lr": scheduler.get_last_lr()}
        torch.save(restored, os.path.join(settings.out, f"restored.{job.attempt}.pt"))
    brake = os.path.join(settings.out, f"brake.{job.attempt}")
    swift = int(open(brake).read()) if os.path.exists(brake) else -1  # noqa: SIM115
    micros = 0
    path = os.path.join(settings.out, f"visits.{job.attempt}.{job.rank}")
    with open(path, "w", buffering=1) as stream:
        for epoch in job.epochs(settings.epochs):
            for index, x, y in loader:
                micros += 1
                pace = SLOW if 0 <= swift < micros else settings.pace
                end = time.monotonic() + pace
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                step = job.step
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                seen = index.tolist() if loader.counted else []
                line = {"epoch": epoch, "step": step, "seen": seen, "loss": loss.item(), "rate": scheduler.last_epoch}
                stream.write(json.dumps(line) + "\n")
                if settings.evaluate and job.at_step and job.step % 5 == 0:
                    with job.eval(), torch.no_grad():
                        job.log(validation=torch.nn.functional.mse_loss(model(data.x), data.y))
                while time.monotonic() < end:
                    time.sleep(pace / 4)
            job.log(loss=loss.item())
    with open(os.path.join(settings.out, f"finished.{job.attempt}.{job.rank}"), "w") as stream:
        stream.write(json.dumps({"replicas": job.replicas, "step": job.step}))


if __name__ == "__main__":
    main(sys.argv[1])
