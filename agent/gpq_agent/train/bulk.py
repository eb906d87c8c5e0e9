"""What is done to `p.grad` of many parameters at once, without a line of Python for each of them.

Where a step takes some ms, a loop over its parameters in Python is seen in its time. Only looks and sets; computes nothing.
"""

from collections import deque
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any, Callable, List, Optional, Sequence

import torch

from .internals import base_of, version_of

Gradient = Optional[torch.Tensor]

_grad: Callable[[Any], Gradient] = attrgetter("grad")
_is_sparse = attrgetter("is_sparse")
_requires_grad = attrgetter("requires_grad")


def gradients_of(parameters: Sequence[Any]) -> List[Gradient]:
    """What is in `p.grad` of each."""
    return list(map(_grad, parameters))


def put(parameters: Sequence[Any], gradients: Sequence[Gradient]) -> None:
    """Into `p.grad` of each."""
    deque(map(setattr, parameters, repeat("grad"), gradients), maxlen=0)


def clear(parameters: Sequence[Any]) -> None:
    """None into `p.grad` of each."""
    deque(map(setattr, parameters, repeat("grad"), repeat(None)), maxlen=0)


def complete(gradients: Sequence[Gradient]) -> Optional[List[torch.Tensor]]:
    """The same; None where one is missing."""
    return None if any(map(is_, gradients, repeat(None))) else list(gradients)  # type: ignore[arg-type]


def has_any(gradients: Sequence[Gradient]) -> bool:
    """Is one of them there?"""
    return any(map(is_not, gradients, repeat(None)))


def are_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """The same objects, in the same order?"""
    return len(these) == len(those) and all(map(is_, these, those))


def versions_of(tensors: Sequence[torch.Tensor]) -> List[int]:
    """How often each has been changed in place."""
    return list(map(version_of, tensors))


def are_plain(gradients: Sequence[torch.Tensor]) -> bool:
    """Dense tensors of their own, without a history?"""
    if any(map(_is_sparse, gradients)) or any(map(_requires_grad, gradients)):
        return False
    return all(map(is_, map(base_of, gradients), repeat(None)))
