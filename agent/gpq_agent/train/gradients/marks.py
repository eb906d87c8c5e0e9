"""Marks of `p.grad`, so that any later change shows."""

from typing import Dict, List, Optional, Tuple

import torch

from gpq_agent.train.internals import version_of

Parameter = torch.nn.Parameter
# A gradient and its version, or (None, -1) if there is none.
Mark = Tuple[Optional[torch.Tensor], int]
Marks = Dict[Parameter, Mark]


def mark(parameter: Parameter) -> Mark:
    """A mark of the current `p.grad`."""
    return mark_of(parameter.grad)


def mark_of(gradient: Optional[torch.Tensor]) -> Mark:
    """The tensor and its version."""
    return (None, -1) if gradient is None else (gradient, version_of(gradient))


def is_marked(parameter: Parameter, marks: Marks) -> bool:
    """Is `p.grad` as it was when it was marked? A parameter without a mark had no gradient."""
    return is_as(parameter, *marks.get(parameter, (None, -1)))


def is_as(parameter: Parameter, previous: Optional[torch.Tensor], version: int) -> bool:
    """Is `p.grad` this tensor, at this version?"""
    gradient = parameter.grad
    return gradient is previous and (gradient is None or version_of(gradient) == version)


class Reach:
    """The parameters that one backward call may reach, and their gradients."""

    def __init__(self) -> None:
        self.parameters: List[Parameter] = []  # that it may reach
        # Before the call. Empty if they had no gradient, or if it does not matter.
        self.previous: Marks = {}
        self._samples: Marks = {}  # a few parameters, before the call

    def recipients(self, parameters: List[Parameter]) -> List[Parameter]:
        """The `parameters` that the call left a gradient to."""
        marks = self.previous
        if not marks:
            return [item for item in parameters if item.grad is not None]
        return [item for item in parameters if item.grad is not None and not is_marked(item, marks)]

    def sample(self, parameters: List[Parameter]) -> None:
        """Before the call: `hits_samples` will ask about these."""
        self._samples = {item: mark(item) for item in parameters}

    def hits_samples(self) -> bool:
        """Did the call leave a gradient to one of the samples?"""
        samples = self._samples
        return any(item.grad is not None and not is_marked(item, samples) for item in samples)
