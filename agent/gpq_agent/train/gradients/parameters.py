"""The parameters that the job trains: the current ones of its optimizers."""

from itertools import chain
from operator import is_, itemgetter
from typing import Any, List, Sequence

from .marks import Parameter

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
