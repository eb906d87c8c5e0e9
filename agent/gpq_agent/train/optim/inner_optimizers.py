"""Inner optimizers, with which another optimizer makes its steps, as SAM and Lookahead do."""

from typing import Any, List, Set

import torch


def inner_optimizers(optimizer: Any) -> List[Any]:
    """The inner optimizers of this optimizer, at any depth. They have no other parameters.

    Looks at the attributes of `optimizer`, and into lists and tuples among them.
    """
    parameter_ids = _parameter_ids(optimizer)
    inner: List[Any] = []
    queue = [optimizer]
    while queue:
        for value in vars(queue.pop()).values():
            candidates = value if isinstance(value, (list, tuple)) else [value]
            for item in candidates:
                if not isinstance(item, torch.optim.Optimizer):
                    continue
                if item is optimizer or item in inner:
                    continue
                if parameter_ids.issuperset(_parameter_ids(item)):
                    inner.append(item)
                    queue.append(item)
    return inner


class InnerOptimizer:
    """A part of checkpoints: the state of an inner optimizer.

    Groups that it shares with the outer optimizer stay shared after a restore.
    """

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer, self._inner = outer, inner
        self._shares_groups = outer.param_groups is inner.param_groups

    def state_dict(self) -> Any:
        return self._inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._inner.load_state_dict(state)
        if self._shares_groups:
            self._inner.param_groups = self._outer.param_groups


def _parameter_ids(optimizer: Any) -> Set[int]:
    return {id(item) for group in optimizer.param_groups for item in group["params"]}
