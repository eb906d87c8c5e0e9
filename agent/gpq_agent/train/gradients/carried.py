"""Finds gradients that went into a step already: if nobody clears one, it goes into two."""

from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from .flat import detached_gradients, is_zero
from .marks import Parameter, is_as, mark
from .parameters import parameters_of


class CarriedGradients:
    """Watches one parameter of each optimizer as a sample for all."""

    def __init__(self, optimizers: List[Any]) -> None:
        self.twice = False  # a gradient went into two steps
        # By identity: the parameter, and a mark of its input to the latest step, until that is
        # cleared.
        self.inputs: Dict[int, Tuple[Parameter, Optional[torch.Tensor], int]] = {}
        self._optimizers = optimizers
        self._reuses: Set[Parameter] = (
            set()
        )  # optimizers whose inputs a backward call has added to since

    def mark_consumed(self, optimizer: Any) -> None:
        """This optimizer made a step from `p.grad`."""
        if self._reuses:
            parameters = parameters_of(optimizer)
            self.twice |= not self._reuses.isdisjoint(parameters)
            self._reuses.difference_update(parameters)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.inputs[id(parameter)] = (parameter, *mark(parameter))
                    return

    def mark_reused(self) -> None:
        """A backward call is over. If it added to the input of a step, that goes into two steps
        unless the script clears it before the optimizer's next step."""
        for parameter, gradient, version in list(self.inputs.values()):
            if not is_as(parameter, gradient, version):
                self.inputs[id(parameter)] = (parameter, *mark(parameter))
                self._reuses.add(parameter)

    def forget_cleared(self) -> None:
        """A backward call starts. An input that the script cleared or changed goes into no other
        step."""
        for parameter, gradient, version in list(self.inputs.values()):
            if not is_as(parameter, gradient, version) or self._is_cleared_unseen(parameter):
                del self.inputs[id(parameter)]
                self._reuses.discard(parameter)

    def _is_cleared_unseen(self, parameter: Parameter) -> bool:
        """Are the gradients of its optimizer zero although no version says so, as after
        `p.grad.data.zero_()`? Waits for the device."""
        if self.twice or parameter.grad is None or not is_zero([parameter.grad.detach()]):
            return False  # the answer does not matter any more, or nothing is cleared
        groups = map(parameters_of, self._optimizers)
        siblings = next(group for group in groups if any(item is parameter for item in group))
        return is_zero(detached_gradients(siblings))
