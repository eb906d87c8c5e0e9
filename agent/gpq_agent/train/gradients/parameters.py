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

_parameters_of = itemgetter("params")


class JobParameters:
    """The parameters of the optimizers, in any module, trained from any time on."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.of_several = len(optimizers) > 1  # optimizers
        self.lost_some = False  # some earlier parameters are gone
        self._optimizers = list(optimizers)
        self._items: List[Parameter] = []  # as in the groups of the optimizers
        self._list: List[Parameter] = []

    def current(self) -> List[Parameter]:
        """Each parameter once. Returns the same list until an optimizer's parameters change."""
        groups: List[List[Parameter]] = []
        for optimizer in self._optimizers:
            groups += map(_parameters_of, optimizer.param_groups)
        items = groups[0] if len(groups) == 1 else list(chain.from_iterable(groups))
        if len(items) != len(self._items) or not all(map(is_, items, self._items)):
            self.lost_some |= not set(items).issuperset(self._items)
            self._items = list(items)
            self._list = list(dict.fromkeys(items))
        return self._list


def mark(parameter: Parameter) -> Mark:
    """A mark of the current `p.grad`."""
    gradient = parameter.grad
    return (None, -1) if gradient is None else (gradient, version_of(gradient))


def is_marked(parameter: Parameter, marks: Marks) -> bool:
    """Is `p.grad` as it was when it was marked?"""
    previous, version = marks[parameter]
    gradient = parameter.grad
    return gradient is previous and (gradient is None or version_of(gradient) == version)
