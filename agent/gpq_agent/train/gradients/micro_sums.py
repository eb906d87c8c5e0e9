"""Sums of the gradients of a step's micro-batches, hidden from the script.

No way of clearing gradients reaches them. Zeros remain in `p.grad`.
"""

from typing import Dict, List, Set

import torch

from gpq_agent.train.internals import (
    base_of,
    foreach_add_,
    foreach_mul,
    foreach_mul_,
    foreach_zero_,
)

from . import flat
from .flat import Zeros, detached_gradients
from .parameters import JobParameters, Marks, Parameter, mark, parameters_of


class MicroSums:
    """The sums of the current step. A sum times `unit` is a parameter's weighted gradient so far.

    After one backward call that reached all parameters, as in most loops, the sums are in `row`.
    Otherwise they are in `by_parameter`. Never in both.
    """

    def __init__(self, parameters: JobParameters) -> None:
        self.unit = 1.0  # the weight of the first micro-batch
        self.by_parameter: Dict[Parameter, torch.Tensor] = {}
        self.row: List[torch.Tensor] = []
        self.any_sparse = False
        # Marks of what is left in `p.grad` in this step: zero, until the script changes it.
        self.zeros: Marks = {}
        self.spare = Zeros()  # from earlier steps, for reuse
        self._owners: List[Parameter] = []  # of the row
        self._parameters = parameters

    # -- of a step -------------------------------------------------------------------------------

    def begin(self, *, in_one_piece: bool) -> None:
        """Another step starts. In one piece: it leaves no zeros."""
        self.end()
        self.any_sparse = False
        if in_one_piece and self.spare.marks:
            self.spare.forget()

    def end(self) -> None:
        """The step has its gradient, or will not happen."""
        self.by_parameter.clear()
        self.row = []
        self.zeros.clear()

    def split(self) -> None:
        """Move the sums out of the row, because they will not be added to all at once."""
        if self.row:
            self.by_parameter = dict(zip(self._owners, self.row))
            self.row = []

    # -- while the step accumulates --------------------------------------------------------------

    def take_row(
        self,
        parameters: List[Parameter],
        gradients: List[torch.Tensor],
        weight: float,
    ) -> None:
        """The first gradients of a step, for all its parameters, become the sums."""
        self.unit = weight
        self.row, self._owners = gradients, parameters
        self.spare.put(parameters, gradients)
        self.zeros = dict(self.spare.marks)

    def resume_from_sums(self, parameters: List[Parameter], weight: float) -> None:
        """Move the sums into `p.grad`, so that the next backward call, with this weight, adds to
        them."""
        if self.row and self._owners is not parameters:
            self.split()
        if self.unit != weight:
            foreach_mul_(self.row or list(self.by_parameter.values()), self.unit / weight)
        flat.put(parameters, self.row or [self.by_parameter.get(item) for item in parameters])
        self.end()

    def stash(
        self,
        recipients: List[Parameter],
        weight: float,
        past_step: Set[Parameter],
        aside: Dict[Parameter, torch.Tensor],
    ) -> None:
        """Add `p.grad` of the recipients, times the weight, except for any that is `past_step`.

        `aside`: gradients from before the backward call, which count unchanged. Those of recipients
        are removed from it.
        """
        if not self.by_parameter:
            self.unit = weight or 1.0
        factor = weight / self.unit
        if self.by_parameter or aside or past_step or factor != 1.0:
            self._add(recipients, factor, past_step, aside)
        else:
            self._take(recipients, factor)

    def _add(
        self,
        recipients: List[Parameter],
        factor: float,
        past_step: Set[Parameter],
        aside: Dict[Parameter, torch.Tensor],
    ) -> None:
        """Add to the existing sums. Leaves zero."""
        sums = self.by_parameter
        addends = [item for item in recipients if item not in past_step]
        for parameter in addends:
            if parameter in aside:
                sums[parameter] = aside.pop(parameter).div_(self.unit)
        self._add_sparse(addends, factor)
        dense = [item for item in addends if item.grad is not None and item in sums]
        if dense:
            foreach_add_([sums[item] for item in dense], detached_gradients(dense), alpha=factor)
        surplus = [item for item in recipients if item in past_step and item.grad is not None]
        if dense or surplus:
            self._clear(dense + surplus)
        new_addends = [item for item in addends if item not in sums]
        if new_addends:
            self._take(new_addends, factor)

    def _add_sparse(self, parameters: List[Parameter], factor: float) -> None:
        sums = self.by_parameter
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                part = parameter.grad * factor
                sums[parameter] = sums[parameter] + part if parameter in sums else part
                self.any_sparse = True
                parameter.grad = None

    def _take(self, parameters: List[Parameter], factor: float) -> None:
        """The first gradients of a step become the sums themselves if their weight is the unit.
        That is cheaper than a copy. Not if they are parts of a bucket, which is filled again."""
        gradients = flat.complete(flat.gradients_of(parameters)) or []
        parts = {
            item: part.detach() if part.requires_grad else part
            for item, part, base in zip(parameters, gradients, map(base_of, gradients))
            if factor == 1.0 and base is None and not part.is_sparse
        }
        self.by_parameter.update(parts)
        self._leave_zeros(parts)
        if len(parts) == len(parameters):
            return
        other_parameters = [item for item in parameters if item not in parts]
        self._add_sparse(other_parameters, factor)
        other_parameters = [item for item in other_parameters if item.grad is not None]
        if other_parameters:
            self.by_parameter.update(
                zip(other_parameters, foreach_mul(detached_gradients(other_parameters), factor))
            )
            self._clear(other_parameters)

    def _leave_zeros(self, parts: Dict[Parameter, torch.Tensor]) -> None:
        """Put zeros into `p.grad` instead of these."""
        if not parts:
            return
        parameters, gradients = list(parts), list(parts.values())
        if self._parameters.are_small:
            self.spare.put(parameters, gradients)
        else:
            flat.put(parameters, list(map(torch.zeros_like, gradients)))
        self.zeros.update((item, mark(item)) for item in parameters)

    def _clear(self, parameters: List[Parameter]) -> None:
        foreach_zero_(detached_gradients(parameters))
        self.zeros.update((item, mark(item)) for item in parameters)

    # -- when the step is complete ---------------------------------------------------------------

    def pop(
        self,
        recipients: Set[Parameter],
        past_step: Set[Parameter],
    ) -> Dict[Parameter, torch.Tensor]:
        """Remove and return the sums of each optimizer that has a recipient, except for any that is
        `past_step`. A parameter that the backward call did not reach has its share too."""
        sums = self.by_parameter
        owners = map(parameters_of, self._parameters.optimizers)
        parts: Dict[Parameter, torch.Tensor] = {}
        for group in [group for group in owners if not recipients.isdisjoint(group)]:
            for parameter in group:
                if parameter in sums and parameter not in past_step:
                    parts[parameter] = sums.pop(parameter)
        return parts

    def restore(
        self,
        recipients: List[Parameter],
        weight: float,
        past_step: Set[Parameter],
    ) -> None:
        """Put the step's gradient into `p.grad`: the weighted gradients of the recipients, and the
        sums."""
        if weight != 1.0:
            _weigh(recipients, weight)
        if not self.by_parameter:
            return
        for parameter, part in self.pop(set(recipients), past_step).items():
            if parameter.grad is None or part.is_sparse:
                share = part * self.unit
                parameter.grad = share if parameter.grad is None else parameter.grad + share
            else:
                parameter.grad.detach().add_(part, alpha=self.unit)

    def restore_manual(self, parameters: List[Parameter], weight: float) -> None:
        """The same for gradients that the script set itself, and in place."""
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(weight)
            if parameter in self.by_parameter:
                parameter.grad.add_(self.by_parameter.pop(parameter), alpha=self.unit)


def _weigh(parameters: List[Parameter], weight: float) -> None:
    """All have a gradient."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad * weight
    dense = [item for item in detached_gradients(parameters) if not item.is_sparse]
    if dense:
        foreach_mul_(dense, weight)
