"""The parameters that the job trains, the current ones of its optimizers, and marks of `p.grad`, so
that any later change shows."""

from itertools import chain
from operator import is_, itemgetter
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from gpq_agent.train.internals import version_of

Parameter = torch.nn.Parameter
# A gradient and its version, or (None, -1) if there is none.
Mark = Tuple[Optional[torch.Tensor], int]
Marks = Dict[Parameter, Mark]

# Elements of all gradients together up to which zeros are reused from step to step: small models,
# with short steps.
SMALL = 1 << 20

_parameters_of = itemgetter("params")


class JobParameters:
    """The parameters of the optimizers, in any module, trained from any time on."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = list(optimizers)
        self.of_several = len(self.optimizers) > 1  # optimizers
        self.are_small = True
        self.lost_some = False  # some earlier parameters are gone
        self._items: List[Parameter] = []  # as in the groups of the optimizers
        self._list: List[Parameter] = []

    def current(self) -> List[Parameter]:
        """Each parameter once. Returns the same list until an optimizer's parameters change."""
        groups: List[List[Parameter]] = []
        for optimizer in self.optimizers:
            groups += map(_parameters_of, optimizer.param_groups)
        items = groups[0] if len(groups) == 1 else list(chain.from_iterable(groups))
        if len(items) != len(self._items) or not all(map(is_, items, self._items)):
            self.lost_some |= not set(items).issuperset(self._items)
            self._items = list(items)
            self._list = list(dict.fromkeys(items))
            self.are_small = sum(item.numel() for item in self._list) <= SMALL
        return self._list

    def samples(self) -> List[Parameter]:
        """The first, middle and last trained parameter of each optimizer."""
        groups = map(parameters_of, self.optimizers)
        return [item for group in groups for item in _samples(group)]


def parameters_of(optimizer: Any) -> List[Parameter]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _samples(parameters: List[Parameter]) -> List[Parameter]:
    leaves = [item for item in parameters if item.requires_grad]
    return [leaves[0], leaves[len(leaves) // 2], leaves[-1]] if leaves else []


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
