"""What stands in `p.grad` in place of gradients that were moved away, of small models: zeros that are kept from step to step.

Nobody else has them who changes them: where one has been changed, by whatever alias of it, all are made anew.
"""

from operator import is_
from typing import Any, Dict, List

import torch

from .reducing import Marks, Parameter, mark_of


class Zeros:
    """Those of one kind lie in one piece of memory, which one call clears. Each has a version of its own, which that call
    does not touch."""

    def __init__(self) -> None:
        self._marks: Marks = {}
        self._pieces: List[torch.Tensor] = []

    def forget(self) -> None:
        """Let go of them."""
        self._marks, self._pieces = {}, []

    def like(self, parts: Dict[Parameter, torch.Tensor]) -> Marks:
        """For each parameter a zero that is like its part."""
        if not self._fit(parts):
            self._make(parts)
            return self._marks
        for piece in self._pieces:  # whatever the versions say: there are ways past those
            piece.zero_()
        return self._marks

    def _fit(self, parts: Dict[Parameter, torch.Tensor]) -> bool:
        """Are they for these parameters, and has nobody changed one?"""
        if len(parts) != len(self._marks) or not all(map(is_, parts, self._marks)):
            return False
        return all(
            zeros is not None and zeros._version == version and zeros.shape == part.shape and zeros.dtype == part.dtype
            for (zeros, version), part in zip(self._marks.values(), parts.values())
        )

    def _make(self, parts: Dict[Parameter, torch.Tensor]) -> None:
        self.forget()
        kinds: Dict[Any, List[Parameter]] = {}
        made: Dict[Parameter, torch.Tensor] = {}
        for parameter, part in parts.items():
            if part.is_contiguous():
                kinds.setdefault((part.dtype, part.device), []).append(parameter)
            else:
                self._pieces.append(torch.zeros_like(part))
                made[parameter] = self._pieces[-1].data
        for (dtype, device), members in kinds.items():
            sizes = [parts[item].numel() for item in members]
            piece = torch.zeros(sum(sizes), dtype=dtype, device=device)
            self._pieces.append(piece)
            for parameter, zeros in zip(members, torch.split(piece, sizes)):
                made[parameter] = zeros.view(parts[parameter].shape).data
        self._marks = {parameter: mark_of(made[parameter]) for parameter in parts}
