"""Operations on the gradients of many parameters at once, without a line of Python for each.

If a step takes a few milliseconds, a Python loop over its parameters is visible in its time. The
functions only read and set, and compute nothing. `Zeros` replace gradients that were moved away, in
small models.
"""

import contextlib
from collections import deque
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import torch

from gpq_agent.train.internals import base_of, version_of

from .parameters import Marks, Parameter, mark_of

Gradient = Optional[torch.Tensor]

_grad: Callable[[Any], Gradient] = attrgetter("grad")
_is_sparse = attrgetter("is_sparse")
_requires_grad = attrgetter("requires_grad")


def gradients_of(parameters: Sequence[Any]) -> List[Gradient]:
    """What is in `p.grad` of each parameter."""
    return list(map(_grad, parameters))


def detached_gradients(parameters: Iterable[Parameter]) -> List[torch.Tensor]:
    """The gradients of the parameters that have one. After a backward call with create_graph a
    gradient has a history, which adding to it must not extend."""
    return [item.grad.detach() for item in parameters if item.grad is not None]


def put(parameters: Sequence[Any], gradients: Sequence[Gradient]) -> None:
    """Put each gradient into `p.grad` of its parameter."""
    deque(map(setattr, parameters, repeat("grad"), gradients), maxlen=0)


def clear(parameters: Sequence[Any]) -> None:
    """Set `p.grad` of each parameter to None."""
    deque(map(setattr, parameters, repeat("grad"), repeat(None)), maxlen=0)


def complete(gradients: Sequence[Gradient]) -> Optional[List[torch.Tensor]]:
    """The same gradients, or None if one is missing."""
    if any(map(is_, gradients, repeat(None))):
        return None
    return list(gradients)  # type: ignore[arg-type]


def has_any(gradients: Sequence[Gradient]) -> bool:
    """Is any of them there?"""
    return any(map(is_not, gradients, repeat(None)))


def are_same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """The same objects, in the same order?"""
    return len(first) == len(second) and all(map(is_, first, second))


def versions_of(tensors: Sequence[torch.Tensor]) -> List[int]:
    """How often each tensor was changed in place."""
    return list(map(version_of, tensors))


def are_plain(gradients: Sequence[torch.Tensor]) -> bool:
    """Are they dense tensors of their own, without a history?"""
    if any(map(_is_sparse, gradients)) or any(map(_requires_grad, gradients)):
        return False
    return all(map(is_, map(base_of, gradients), repeat(None)))


class Zeros:
    """Zeros in `p.grad`, reused from step to step.

    Those of one type on one device share one piece of memory, which one call clears. Each zero has
    its own version, which that call does not change. Nobody else changes them. If one has been
    changed, through any alias, all are created again.
    """

    def __init__(self) -> None:
        self.marks: Marks = {}  # of each parameter's zero
        self._parameters: List[Parameter] = []
        self._zeros: List[torch.Tensor] = []  # in the order of the parameters
        self._versions: List[int] = []
        self._pieces: List[torch.Tensor] = []

    def forget(self) -> None:
        """Release them."""
        self.marks = {}
        for kind in (self._parameters, self._zeros, self._versions, self._pieces):
            kind.clear()

    def put(self, parameters: Sequence[Parameter], parts: Sequence[torch.Tensor]) -> None:
        """Put a zero with the shape, type and device of its part into `p.grad` of each
        parameter."""
        if are_same(parameters, self._parameters) and versions_of(self._zeros) == self._versions:
            for piece in self._pieces:  # do not trust the versions: some writes do not change them
                piece.zero_()
            with contextlib.suppress(RuntimeError):  # a parameter moved or changed its type
                put(parameters, self._zeros)
                return
        self._make(parameters, parts)
        put(parameters, self._zeros)

    def _make(self, parameters: Sequence[Parameter], parts: Sequence[torch.Tensor]) -> None:
        self.forget()
        kinds: Dict[Any, List[int]] = {}
        zeros: Dict[int, torch.Tensor] = {}
        for place, part in enumerate(parts):
            if part.is_contiguous():
                kinds.setdefault((part.dtype, part.device), []).append(place)
            else:
                self._pieces.append(torch.zeros_like(part))
                zeros[place] = self._pieces[-1].data
        for (dtype, device), places in kinds.items():
            sizes = [parts[place].numel() for place in places]
            piece = torch.zeros(sum(sizes), dtype=dtype, device=device)
            self._pieces.append(piece)
            for place, zero in zip(places, torch.split(piece, sizes)):
                zeros[place] = zero.view(parts[place].shape).data
        self._parameters = list(parameters)
        self._zeros = [zeros[place] for place in range(len(parts))]
        self._versions = versions_of(self._zeros)
        self.marks = {parameter: mark_of(zero) for parameter, zero in zip(parameters, self._zeros)}
