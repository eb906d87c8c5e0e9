"""Batch norm in groups of 32: the time of a forward and a backward pass of ResNet-18 for images of
32 x 32, batch 128, relative to plain batch norm on the same batch.

    python benchmarks/batch_norm.py         # exits with 1 above 5 %. --channels-last, --pairs 100

Passes alternate, and the figure is the ratio of their medians: seconds on a GPU, and on a CPU those
of one core that this process got.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "agent")]

import torch  # noqa: E402
from gpq_agent.train.gradients.batch_norm import GroupedNorms  # noqa: E402
from torch import nn  # noqa: E402

BAR = 1.05
BATCH, GROUP, WIDTH = 128, 32, 64


class Block(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.skip = nn.Sequential()
        if stride > 1:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip = nn.Sequential(skip, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.skip(x))


def resnet18() -> nn.Module:
    stem = [nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    blocks, inputs = [], WIDTH
    for outputs, stride in ((WIDTH, 1), (2 * WIDTH, 2), (4 * WIDTH, 2), (8 * WIDTH, 2)):
        blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*stem, *blocks, *head)


class Passes:
    """A model, and `norms` if it is grouped."""

    def __init__(self, model: nn.Module, norms: GroupedNorms | None) -> None:
        self.model, self.norms = model, norms
        self.seconds: list[float] = []

    def run(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        clock: Any = time.perf_counter if images.is_cuda else time.process_time
        self.model.zero_grad()
        if images.is_cuda:
            torch.cuda.synchronize()
        begin = clock()
        if self.norms is not None:
            self.norms.begin_step()
            self.norms.enter(BATCH)
        nn.functional.cross_entropy(self.model(images), labels).backward()
        if self.norms is not None:
            self.norms.pass_ended(BATCH, last=True)
            self.norms.leave(drop=False)
        if images.is_cuda:
            torch.cuda.synchronize()
        self.seconds.append(clock() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = resnet18().to(device, memory_format=layout)
    images = torch.randn(BATCH, 3, 32, 32, device=device).to(memory_format=layout)
    labels = torch.randint(10, (BATCH,), device=device)
    norms, grouped_model = GroupedNorms(), copy.deepcopy(model)
    norms.convert(grouped_model, GROUP)
    norms.collect([grouped_model], None)
    plain, grouped = Passes(model, None), Passes(grouped_model, norms)
    for pair in range(options.pairs + 2):  # the first two warm up
        for passes in (plain, grouped) if pair % 2 else (grouped, plain):
            passes.run(images, labels)
    plain_time, grouped_time = median(plain.seconds[2:]), median(grouped.seconds[2:])
    ratio = grouped_time / plain_time
    print(f"plain {plain_time:.4f} s, groups of {GROUP} {grouped_time:.4f} s on {device.type}")
    print(f"ratio {ratio:.3f} (at most {BAR})")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
