"""A residual network and a detector in the manner of YOLO, both with batch norm in groups of four. Plain networks load
the trained weights."""

import sys
from typing import Any

import gpq_agent.train as gpq
import torch
from torch import nn

EPOCHS, SIZE, BATCH, LOCAL = 3, 201, 24, 24  # the last step of an epoch has nine examples: four, two and three


class Block(nn.Module):
    """Two convolutions with a skip connection, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> Any:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.skip(x) + self.second_norm(self.second(inner)))


def residual() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4, momentum=None), nn.ReLU())
    blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3))
    return nn.Sequential(stem, blocks, head)


class Detector(nn.Module):
    """Convolutions with batch norm, and two scales that predict an objectness and a class in each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(self.unit(3, 4, 2), self.unit(4, 8, 2))
        self.deep = nn.Sequential(self.unit(8, 8, 2), nn.BatchNorm2d(8, track_running_stats=False))
        self.join = self.unit(16, 8, 1)
        self.heads = nn.ModuleList([nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)])

    @staticmethod
    def unit(inputs: int, outputs: int, stride: int) -> nn.Module:
        norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm, nn.SiLU())

    def forward(self, x: torch.Tensor) -> Any:
        fine = self.stem(x)
        coarse = self.deep(fine)
        joined = self.join(torch.cat([fine, nn.functional.interpolate(coarse, scale_factor=2.0)], dim=1))
        return self.heads[0](joined), self.heads[1](coarse)


class Shapes(torch.utils.data.Dataset[Any]):
    """Image i, its class, and the cells of a grid of 2 x 2 with an object, computed from i."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        cells = torch.rand(2, 2, generator=generator).round()
        spots = nn.functional.interpolate(cells[None, None], scale_factor=4.0)[0]
        return spots * (index % 3 + 1) + 0.5 * torch.randn(3, 8, 8, generator=generator), index % 3, cells


def detection_loss(outputs: Any, labels: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """A mean over the cells of all examples."""
    loss = torch.zeros(())
    for output in outputs:
        scores = nn.functional.adaptive_avg_pool2d(output, 2)
        loss = loss + nn.functional.binary_cross_entropy_with_logits(scores[:, 0], cells)
        targets = labels[:, None, None].expand(-1, 2, 2)
        loss = loss + nn.functional.cross_entropy(scores[:, 1:], targets)
    return loss


def main(out: str) -> None:
    job = gpq.init(seed=5)
    loader = job.loader(Shapes(), batch_size=BATCH, max_local_batch=LOCAL, fixed_batch=True)
    networks = [residual(), Detector()]
    models = [job.wrap(network, batch_norm=4) for network in networks]
    parameters = [item for model in models for item in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
    models, optimizer, _ = job.prepare(models, optimizer)
    for _ in job.epochs(EPOCHS):
        for images, labels, cells in loader:
            loss = nn.functional.cross_entropy(models[0](images), labels)
            loss = loss + detection_loss(models[1](images), labels, cells)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if job.rank == 0:
        state = {f"{n}.{key}": item for n, network in enumerate(networks) for key, item in network.state_dict().items()}
        plain = [residual(), Detector()]
        for network, other in zip(networks, plain, strict=True):
            other.load_state_dict(network.state_dict())
        torch.save(state, out)


if __name__ == "__main__":
    main(sys.argv[1])
