"""A generator against a discriminator of points on a ring: two models, two optimizers and separate noise for each
example."""

import itertools
import math
import sys

import gpq_agent.train as gpq
import torch
from torch import nn
from torch.utils.data import TensorDataset

COUNT, NOISE, EPOCHS = 109, 4, 4


def ring(count: int) -> torch.Tensor:
    angles = torch.rand(count, generator=torch.Generator().manual_seed(8)) * 2 * math.pi
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def noise_for(epoch: int, numbers: torch.Tensor) -> torch.Tensor:
    """Noise that depends only on the example and the epoch, not on the replica."""
    seeds = [torch.Generator().manual_seed(epoch * COUNT + number) for number in numbers.tolist()]
    return torch.stack([torch.randn(NOISE, generator=seed) for seed in seeds])


def network(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.LayerNorm(wide), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-2])


def main(out: str) -> None:
    job = gpq.init(seed=3)
    numbered = TensorDataset(ring(COUNT), torch.arange(COUNT))
    loader = job.loader(numbered, batch_size=11, fixed_batch=True)
    maker, judge = job.wrap(network(NOISE, 16, 2)), job.wrap(network(2, 16, 1))
    adams = [torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999)) for each in (judge, maker)]
    job.prepare([judge, maker], adams)
    measure = nn.BCEWithLogitsLoss()
    for epoch in job.epochs(EPOCHS):
        for real, numbers in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            judge.zero_grad()
            measure(judge(real), ones).backward()
            false = maker(noise_for(epoch, numbers))
            measure(judge(false.detach()), zeros).backward()
            adams[0].step()
            maker.zero_grad()
            loss = measure(judge(false), ones)
            loss.backward()
            adams[1].step()
            if job.step % 8 == 0:  # look at the generator's output during training
                shown = maker(noise_for(0, torch.arange(3)))
                job.log(loss=loss, radius=shown.detach().norm(dim=1).mean())
    if job.rank == 0:
        weights = {f"{name}.{key}": value for name, each in (("maker", maker), ("judge", judge))
                   for key, value in each.state_dict().items()}  # fmt: skip
        torch.save(weights, out)


if __name__ == "__main__":
    main(sys.argv[1])
