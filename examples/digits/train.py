"""Trains a small convolutional network on the handwritten digits of scikit-learn.

Exits with 1 if it reads fewer than 97% of the held-out digits correctly.
"""

import argparse
import sys

import gpq_agent.train as gpq
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

TARGET = 0.97
HELD_OUT = 360


class Net(nn.Module):
    """Three convolutions and a linear layer.

    It has no batch norm, so the batch size changes nothing but gradient noise.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(2 * width * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def load() -> tuple[TensorDataset, TensorDataset]:
    """Images of 8 x 8 in [0, 1] for (training, held-out test), split the same way every time."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    unseen, seen = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(images[seen], labels[seen]), TensorDataset(images[unseen], labels[unseen])


@torch.no_grad()
def accuracy(model: nn.Module, held_out: TensorDataset, device: torch.device) -> float:
    images, labels = held_out.tensors
    return (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="batch size that the learning rate is for"
    )
    parser.add_argument(
        "--max-batch-size", type=int, default=256, help="largest batch size that gpq may choose"
    )
    parser.add_argument(
        "--max-local-batch", type=int, default=64, help="most examples that fit on one GPU at once"
    )
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=48, help="channels of the first layer")
    options = parser.parse_args()

    job = gpq.init()
    training, held_out = load()
    loader = job.loader(
        training,
        batch_size=options.batch_size,
        max_batch_size=options.max_batch_size,
        max_local_batch=options.max_local_batch,
    )
    model = job.wrap(Net(options.width))
    plain = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    steps = options.epochs * len(loader)  # at the base batch size, whatever gpq chooses
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=steps, eta_min=options.lr / 20
    )
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)

    for epoch in job.epochs(options.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(job.device)), labels.to(job.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        with job.eval():
            if job.rank == 0:
                score = accuracy(plain, held_out, job.device)
                job.log(loss=loss.item(), accuracy=score)
                print(
                    f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.4f}  accuracy"
                    f" {score:.4f}",
                    flush=True,
                )

    score = accuracy(plain, held_out, job.device)  # the same on every replica
    if job.rank == 0:
        job.log(accuracy=score)
        print(
            f"accuracy {score:.4f}, target {TARGET}: {'reached' if score >= TARGET else 'missed'}",
            flush=True,
        )
    return 0 if score >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
