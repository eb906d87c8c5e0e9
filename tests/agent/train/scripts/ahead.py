"""Loaders around another one that draw its next batch before they give the one they have, as those of timm, apex and
Accelerate do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gpq_agent.train as gpq
import torch


class Timm:
    """A loop over the loader in a generator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        first, batch = True, None
        for next_batch in self.loader:
            if not first:
                yield batch
            first, batch = False, next_batch
        yield batch


class Accelerate:
    """Calls of next() in a generator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        current = next(batches)
        while True:
            try:
                following = next(batches)
            except StopIteration:
                yield current
                return
            yield current
            current = following


class Apex:
    """Calls of next() in a method."""

    def __init__(self, loader: Any) -> None:
        self.batches = iter(loader)
        self.preload()

    def preload(self) -> None:
        self.batch = next(self.batches, None)

    def next(self) -> Any:
        batch = self.batch
        self.preload()
        return batch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.next, None)


LOADERS: dict[str, Any] = {"timm": Timm, "accelerate": Accelerate, "apex": Apex}


def main(name: str) -> None:
    job = gpq.init()
    data = torch.utils.data.TensorDataset(torch.ones(40, 1))
    loader = job.loader(data, batch_size=8, fixed_batch=True)
    model = job.wrap(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, _ = job.prepare(model, optimizer)
    for epoch in job.epochs(3):
        for (x,) in LOADERS[name](loader):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        sys.stdout.write(f"epoch {epoch} is over")


if __name__ == "__main__":
    main(sys.argv[1])
