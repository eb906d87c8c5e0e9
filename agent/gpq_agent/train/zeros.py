"""What stands in `p.grad` in place of gradients that were moved away, of small models: zeros that are kept from step to step.

Nobody else has them who changes them: where one has been changed, by whatever alias of it, all are made anew.
"""

import contextlib
from typing import Any, Dict, List, Sequence

import torch

from .bulk import are_same, put, versions_of
from .internals import foreach_norm, values_of
from .reducing import Marks, Parameter, mark_of


class Zeros:
    """Those of one kind lie in one piece of memory, which one call clears. Each has a version of its own, which that call
    does not touch."""

    def __init__(self) -> None:
        self.marks: Marks = {}  # of each parameter its zero, and the version of that
        self._parameters: List[Parameter] = []
        self._zeros: List[torch.Tensor] = []  # of each
        self._versions: List[int] = []
        self._pieces: List[torch.Tensor] = []

    def forget(self) -> None:
        """Let go of them."""
        self.marks = {}
        for kept in (self._parameters, self._zeros, self._versions, self._pieces):
            kept.clear()

    def put(self, parameters: Sequence[Parameter], parts: Sequence[torch.Tensor]) -> None:
        """Into `p.grad` of each a zero that is like its part."""
        if are_same(parameters, self._parameters) and versions_of(self._zeros) == self._versions:
            for piece in self._pieces:  # whatever the versions say: there are ways past those
                piece.zero_()
            with contextlib.suppress(RuntimeError):  # a parameter is of another type, or elsewhere, by now
                put(parameters, self._zeros)
                return
        self._make(parameters, parts)
        put(parameters, self._zeros)

    def all(self) -> List[torch.Tensor]:
        """Those that there are."""
        return list(self._zeros)

    def _make(self, parameters: Sequence[Parameter], parts: Sequence[torch.Tensor]) -> None:
        self.forget()
        kinds: Dict[Any, List[int]] = {}
        made: Dict[int, torch.Tensor] = {}
        for place, part in enumerate(parts):
            if part.is_contiguous():
                kinds.setdefault((part.dtype, part.device), []).append(place)
            else:
                self._pieces.append(torch.zeros_like(part))
                made[place] = self._pieces[-1].data
        for (dtype, device), members in kinds.items():
            sizes = [parts[place].numel() for place in members]
            piece = torch.zeros(sum(sizes), dtype=dtype, device=device)
            self._pieces.append(piece)
            for place, zeros in zip(members, torch.split(piece, sizes)):
                made[place] = zeros.view(parts[place].shape).data
        self._parameters = list(parameters)
        self._zeros = [made[place] for place in range(len(parts))]
        self._versions = versions_of(self._zeros)
        self.marks = {parameter: mark_of(zero) for parameter, zero in zip(parameters, self._zeros)}


def is_zero(tensors: Sequence[torch.Tensor]) -> bool:
    """Are all of them, everywhere? Waits for the devices, once for each."""
    values = [values_of(each) if each.is_sparse else each for each in tensors]
    found: Dict[torch.device, List[torch.Tensor]] = {}
    for norm in foreach_norm([each for each in values if each.numel()], float("inf")):
        found.setdefault(norm.device, []).append(norm != 0)
    return not any(bool(torch.stack(each).any()) for each in found.values())
