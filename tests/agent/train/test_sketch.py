"""Fingerprints never change, and they are computed on the device of the tensor."""

from __future__ import annotations

import math

import pytest
import torch
from gpq_agent.train.prove.sketch import COUNT, ROWS, SEED, WIDTH, Sketcher

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def by_the_formula(tensor: torch.Tensor) -> list[float]:
    """Computed row by row from the seed alone."""
    matrix = torch.randn(WIDTH, COUNT, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    total = torch.zeros(COUNT, dtype=torch.float64)
    for number, part in enumerate(torch.split(tensor.reshape(-1).double(), WIDTH * ROWS)):
        rows = -(-len(part) // WIDTH)
        padded = torch.zeros(rows * WIDTH, dtype=torch.float64)
        padded[: len(part)] = part
        generator = torch.Generator().manual_seed(SEED + 1 + number)
        signs = torch.randint(0, 2, (rows, COUNT), generator=generator) * 2 - 1
        total += (padded.reshape(rows, WIDTH) @ matrix * signs).sum(dim=0)
    return total.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, WIDTH, 3 * WIDTH + 5, ROWS * WIDTH + 2 * WIDTH + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fingerprints_follow_the_formula(size: int, dtype: torch.dtype, device: str) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    norm, epsilon, *projections = Sketcher()(tensor.to(device))
    assert norm == pytest.approx(float(tensor.double().norm()), rel=1e-12)
    assert epsilon == torch.finfo(dtype).eps
    assert projections == pytest.approx(by_the_formula(tensor), rel=1e-9, abs=1e-9)
    assert Sketcher()(torch.tensor([1.0, math.nan])) == [None]
