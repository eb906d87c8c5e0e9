"""Fingerprints of what is trained: random projections that show how far two tensors are apart
without keeping either.

The same tensor has the same fingerprint in every process with one PyTorch. `gpq check` judges them.
"""

import math
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

WIDTH = 4096  # elements of a row
ROWS = 256  # elements to project at once
COUNT = 16  # projections: a distance comes out within a fifth or so (1 / sqrt(2 * COUNT))
SEED = 20260
MOST = 20000  # tensors and numbers of one record. The rest is left out

Fingerprint = List[Optional[float]]


class Sketcher:
    """Projects tensors of any size on COUNT random directions.

    Each direction has independent entries with mean 0 and variance 1: normal numbers with new
    random signs in each row. So for the projections p and q of two tensors the mean of (p - q)^2 is
    |a - b|^2. See Johnson and Lindenstrauss (1984), in the form of Achlioptas (2003). It computes
    in float64, so that it shows the rounding of the tensors, not its own.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._matrix = torch.randn(WIDTH, COUNT, dtype=torch.float64, generator=generator)
        self._matrices: Dict[torch.device, torch.Tensor] = {}
        # The directions for the rows of a part of a tensor, by its number.
        self._signs: Dict[Tuple[torch.device, int], torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> Fingerprint:
        """[norm, machine epsilon of its type, COUNT projections], or [None] if it is not finite."""
        flat = tensor.detach().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        epsilon = torch.finfo(flat.dtype).eps if flat.is_floating_point() else 0.0
        device = flat.device if flat.device.type == "cuda" else torch.device("cpu")
        if device not in self._matrices:
            self._matrices[device] = self._matrix.to(device)
        matrix = self._matrices[device]
        # Append the squares: everything from a device arrives at once.
        total = torch.zeros(COUNT + 1, dtype=torch.float64, device=device)
        for number, part in enumerate(torch.split(flat, WIDTH * ROWS)):
            part = part.to(device=device, dtype=torch.float64)
            total[COUNT] += torch.dot(part, part)
            rows = -(-len(part) // WIDTH)
            padded = torch.zeros(rows * WIDTH, dtype=torch.float64, device=device)
            padded[: len(part)] = part
            if (device, number) not in self._signs:
                generator = torch.Generator().manual_seed(SEED + 1 + number)
                bits = torch.randint(0, 2, (ROWS, COUNT), generator=generator, dtype=torch.int8)
                self._signs[device, number] = (bits * 2 - 1).to(device)
            signs = self._signs[device, number][:rows]
            total[:COUNT] += (padded.reshape(rows, WIDTH) @ matrix * signs).sum(dim=0)
        *projections, squares = total.tolist()
        if not math.isfinite(squares):
            return [None]
        return [math.sqrt(squares), epsilon, *projections]


def flatten(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """Tensors and numbers of a state, by path: `optimizer.state.0.exp_avg`. A tensor with one
    element is a number."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            yield name, float(value)
        elif value.numel() and value.dtype != torch.uint8:  # those are states of generators
            yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten("{}.{}".format(name, key) if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from flatten("{}.{}".format(name, index), item)
    elif isinstance(value, (bool, int, float)):
        yield name, float(value)


def named_optimizer(optimizer: Any, names: Dict[int, str]) -> Dict[str, Any]:
    """Its state with the parameters' own names. `names`: id of a parameter -> its name in the
    model."""
    state: Dict[str, Any] = {}
    for index, group in enumerate(optimizer.param_groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        state["group {}".format(index)] = settings
    for name, parameter in named_parameters(optimizer, names):
        slots = optimizer.state.get(parameter, {})
        if isinstance(slots, dict):
            state.update({"{} of {}".format(key, name): value for key, value in slots.items()})
    return state


def named_parameters(optimizer: Any, names: Dict[int, str]) -> Iterator[Tuple[str, torch.Tensor]]:
    """What an optimizer trains, by the names in the model, or else by its places in it."""
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            place_name = "parameter {} of group {}".format(place, index)
            yield names.get(id(parameter), place_name), parameter
