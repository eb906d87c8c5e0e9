"""A residual network with group norm, momentum and a warm-up by epochs. It keeps the best accuracy and its weights."""

import sys
from typing import Any

import gpq_agent.train as gpq
import torch
from torch import nn

EPOCHS, WARM = 4, 2


class Block(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, width), nn.GroupNorm(2, width)])

    def forward(self, x: torch.Tensor) -> Any:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(inner)))


class Textures(torch.utils.data.Dataset[Any]):
    """Image i of three classes, computed from its index: each class has waves of another length."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        label = (self.first + index) % 3
        wave = torch.sin(torch.arange(8.0) * (label + 1) + 6 * torch.rand(1, generator=generator))
        return wave.expand(3, 8, 8) + 0.5 * torch.randn(3, 8, 8, generator=generator), label


def rate_of(epoch: int) -> float:
    """A factor for the rate."""
    return (epoch + 1) / WARM if epoch < WARM else 0.5 ** (epoch - WARM)


@torch.no_grad()
def accuracy(model: nn.Module, data: Textures) -> float:
    model.eval()
    images = torch.stack([data[index][0] for index in range(len(data))])
    labels = torch.tensor([data[index][1] for index in range(len(data))])
    found: torch.Tensor = model(images).argmax(dim=1) == labels
    model.train()
    return found.float().mean().item()


def main(out: str) -> None:
    job = gpq.init(seed=5)
    loader = job.loader(Textures(0, 106), batch_size=12, fixed_batch=True)
    held_out = Textures(1000, 30)
    stem, head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(8, 3)
    net = nn.Sequential(stem, Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    model = job.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of)
    model, optimizer, warm_up = job.prepare(model, optimizer, warm_up)
    best = job.state("best", 0.0)
    for epoch in job.epochs(EPOCHS):
        for images, labels in loader:
            loss: Any = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with job.eval():
            score = accuracy(model, held_out)
        warm_up.step()
        if job.rank == 0:
            torch.save(net.state_dict(), f"{out}.{epoch}")
        best = job.state("best", max(best, score))
    if job.rank == 0:
        torch.save({**net.state_dict(), "best": torch.tensor(best)}, out)


if __name__ == "__main__":
    main(sys.argv[1])
