"""What is in `p.grad` when: a script sees the gradient of a whole step in its last micro-batch, and zero in those before.

In micro-batches that only accumulate, what a backward pass leaves is moved, with its weight, into sums that the script does
not see: what it does to `p.grad` there is without effect, and no way of clearing gradients reaches them. In the last one they
are added, and reduced over replicas, before the call that ran the pass returns. Steps in one piece are left as they are.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

import torch

from .probe import GradientProbe
from .reducing import Marks, Parameter, Reducer, is_marked, mark


class Gradients:
    """Of all parameters of the job's optimizers, whatever module they belong to and whenever they began to be trained.

    `weight` is the factor on what the coming passes of this micro-batch compute: the gradient of the step is the weighted
    sum over its micro-batches, averaged over replicas.
    """

    def __init__(self, optimizers: Sequence[Any], probe: GradientProbe, reducer: Optional[Reducer]) -> None:
        self.weight = 1.0
        self.passes = 0  # in this micro-batch
        self.changed_between = False  # the script changed gradients between two passes that only accumulate
        self._optimizers = list(optimizers)
        self._probe = probe
        self._reducer = reducer  # None: one replica
        self._open = False  # between enter and leave
        self._place = 0
        self._micro_batches = 1
        self._sums: Dict[Parameter, torch.Tensor] = {}
        self._earlier: Dict[Parameter, torch.Tensor] = {}  # of passes of the last micro-batch before the one that runs
        self._closed: Set[Parameter] = set()  # the optimizer of these has made its step in this micro-batch
        self._marks: Marks = {}

    # -- around a micro-batch ------------------------------------------------------------------------------------------

    @property
    def last(self) -> bool:
        return self._place == self._micro_batches - 1

    def enter(self, place: int, micro_batches: int, weight: float) -> None:
        """The script is about to be given micro-batch `place` of so many."""
        self._place, self._micro_batches, self.weight = place, micro_batches, weight
        self._open = True
        self.passes = 0
        self.changed_between = False
        self._closed.clear()
        self._marks.clear()
        if place == 0:
            self._sums.clear()
        if self._reducer is not None:
            self._reducer.enter(self.last, micro_batches > 1 or weight != 1.0)

    def leave(self, *, drop: bool) -> None:
        """The script is done with it. `drop`: the step will not happen: forget what it has accumulated."""
        self._open = False
        if self.last or drop:
            self._sums.clear()
        self._earlier.clear()
        self._marks.clear()
        if self._reducer is not None:
            self._reducer.leave()

    def close(self, optimizer: Any) -> None:
        """The script has called this optimizer's step in a micro-batch that only accumulates: what further passes leave to
        its parameters here would have been cleared before its next step."""
        self._closed.update(_of(optimizer))

    def scale(self, factor: float) -> None:
        """Multiply what is accumulated so far."""
        self._probe.scaled(factor)
        if factor != 1.0 and self._sums:
            torch._foreach_mul_(list(self._sums.values()), factor)

    @property
    def in_pieces(self) -> bool:
        """Is the step cut into micro-batches, or this replica's share not as large as the others'?"""
        return self._micro_batches > 1 or self.weight != 1.0

    def parameters(self) -> List[Parameter]:
        """Each parameter once."""
        return list(dict.fromkeys(item for optimizer in self._optimizers for item in _of(optimizer)))

    # -- around a backward pass ----------------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        if not self._open:
            return
        self.passes += 1
        parameters = self.parameters()
        if self.passes == 1:
            self._probe.weights += self.weight
        if self.in_pieces:
            self._make_room(parameters)
        if self._reducer is not None:
            self._reducer.begin_pass(parameters, self._sums, self.weight, watch=self.in_pieces or self.passes > 1)
        elif self.in_pieces:
            self._marks = {item: mark(item) for item in parameters}

    def end_pass(self) -> None:
        if not self._open:
            return
        if not self.in_pieces:
            if self._reducer is not None:
                self._reducer.end_pass({})
            return
        parameters = self.parameters()
        if not self.last:
            self._hide(parameters)
        elif self._reducer is not None:
            self._reducer.end_pass(self._waiting(self._reducer.touched()))
        else:
            self._show(parameters)
        for parameter, earlier in self._earlier.items():
            parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
        self._earlier.clear()

    def adopt(self) -> None:
        """Gradients that came without a backward pass (`p.grad = ...`): treat what is there as that of one."""
        self.passes += 1
        parameters = [item for item in self.parameters() if item.grad is not None]
        if not self.last:
            self._hide(parameters)
            return
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(self.weight)
            if parameter in self._sums:
                parameter.grad.add_(self._sums.pop(parameter))
        if self._reducer is not None:
            self._reducer.average(self.parameters())

    def _make_room(self, parameters: Iterable[Parameter]) -> None:
        """So that after the pass `p.grad` holds what that pass computed, and nothing else."""
        first = self.passes == 1
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                self.changed_between |= not first and not self.last and self._was_hidden(parameter)
            elif first and self._place == 0:
                # What the script has left there from before is a part of its step: it goes first.
                self._sums[parameter] = gradient.clone() if gradient._base is not None else gradient
                parameter.grad = None
            elif not first and self.last:
                self._earlier[parameter] = gradient.clone() if gradient._base is not None else gradient
                parameter.grad = None
            elif not is_marked(parameter, self._marks):
                self.changed_between |= not first and self._was_hidden(parameter)
                gradient.detach().zero_()

    def _was_hidden(self, parameter: Parameter) -> bool:
        return parameter in self._marks and parameter not in self._closed

    def _hide(self, parameters: Iterable[Parameter]) -> None:
        """Move the gradients of this pass into the sums."""
        if self._reducer is None:
            self._probe.pass_ended(self.weight, touched=self._touched(parameters))
        found = [item for item in parameters if item.grad is not None and item not in self._closed]
        for parameter in [item for item in found if item.grad is not None and item.grad.is_sparse]:
            assert parameter.grad is not None
            part = parameter.grad * self.weight
            self._sums[parameter] = self._sums[parameter] + part if parameter in self._sums else part
            parameter.grad = None
        dense = [item for item in found if item.grad is not None]
        known = [item for item in dense if item in self._sums]
        new = [item for item in dense if item not in self._sums]
        if known:
            torch._foreach_add_([self._sums[item] for item in known], _gradients(known), alpha=self.weight)
        if new:
            self._sums.update(zip(new, torch._foreach_mul(_gradients(new), self.weight)))
        cleared = [item for item in parameters if item.grad is not None]
        if cleared:
            torch._foreach_zero_(_gradients(cleared))
        self._marks = {item: mark(item) for item in cleared}

    def _show(self, parameters: Iterable[Parameter]) -> None:
        """One replica, last micro-batch: the step is complete for the optimizers whose parameters the pass has reached."""
        touched = self._touched(parameters)
        self._probe.pass_ended(self.weight, touched=touched)
        gradients = _gradients(touched)
        if self.weight != 1.0 and gradients:
            torch._foreach_mul_(gradients, self.weight)
        for parameter, waiting in self._waiting(set(touched)).items():
            if parameter.grad is None or waiting.is_sparse:
                parameter.grad = waiting if parameter.grad is None else parameter.grad + waiting
            else:
                parameter.grad.add_(waiting)
        self._probe.step_ended()

    def _touched(self, parameters: Iterable[Parameter]) -> List[Parameter]:
        return [item for item in parameters if not is_marked(item, self._marks)]

    def _waiting(self, touched: Set[Parameter]) -> Dict[Parameter, torch.Tensor]:
        """Take the sums of every optimizer that the pass has reached: a parameter that it has not used has its share too."""
        reached = [each for each in self._optimizers if not touched.isdisjoint(_of(each))]
        taken: Dict[Parameter, torch.Tensor] = {}
        for parameter in (item for optimizer in reached for item in _of(optimizer)):
            if parameter in self._sums and parameter not in self._closed:
                taken[parameter] = self._sums.pop(parameter)
        return taken


def _of(optimizer: Any) -> List[Parameter]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _gradients(parameters: Iterable[Parameter]) -> List[torch.Tensor]:
    # Detached: after a pass with create_graph a gradient has a history of its own, which adding must not extend.
    return [item.grad.detach() for item in parameters if item.grad is not None]
