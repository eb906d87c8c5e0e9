"""Norms of tensors: they show a change that no optimizer made, for one pass over the tensors."""

from typing import Any, Iterable

import torch

from gpq_agent.train.internals import foreach_norm


class Norms:
    """One norm per tensor, in order. Skips sparse tensors. Waits for the device."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._tensors = [item for item in tensors if not item.is_sparse]
        self._values = self._measure()

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self._values.sum())

    def differ(self) -> bool:
        """Have they changed since this was made?"""
        return not torch.equal(self._values, self._measure())

    def equal(self, norms: "Norms") -> bool:
        """Norms of perhaps other tensors, the same number in the same order."""
        return torch.equal(self._values.nan_to_num(), norms._values.nan_to_num())

    def _measure(self) -> torch.Tensor:
        """Shape (tensors,), float64, on the CPU."""
        if not self._tensors:
            return torch.zeros(0)
        with torch.no_grad():
            norms = foreach_norm([item.detach() for item in self._tensors])
            return torch.stack([norm.detach().double().cpu() for norm in norms])
