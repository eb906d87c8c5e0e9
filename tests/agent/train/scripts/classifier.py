"""A small convolutional image classifier: Adadelta, a rate that falls each epoch, and evaluation after each epoch."""

import argparse
from typing import Any

import gpq_agent.train as gpq
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def pictures(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    for index, label in enumerate(labels.tolist()):
        images[index, 0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 1.0
    return TensorDataset(images, labels)


def train_epoch(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss: Any = functional.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, loader: "DataLoader[tuple[torch.Tensor, ...]]") -> float:
    model.eval()
    right = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in loader)
    return right / sum(len(labels) for _, labels in loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=15)
    arguments = parser.parse_args()
    job = gpq.init(seed=1)
    loader = job.loader(pictures(143, seed=2), arguments.batch_size, fixed_batch=True)
    held_out = DataLoader(pictures(40, seed=3), batch_size=20)
    layers = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 4), nn.LogSoftmax(dim=1)]
    model = job.wrap(nn.Sequential(*layers))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    for _ in job.epochs(arguments.epochs):
        train_epoch(model, loader, optimizer)
        with job.eval():
            job.log(accuracy=evaluate(model, held_out))
        scheduler.step()
    if job.rank == 0:
        torch.save(model.state_dict(), arguments.out)


if __name__ == "__main__":
    main()
