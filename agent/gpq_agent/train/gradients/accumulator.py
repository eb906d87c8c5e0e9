"""Decides what is in `p.grad`: a whole step's gradient in its last micro-batch, and zero before.

In micro-batches that only accumulate, the result of the backward call moves, with its weight, into
sums that the script does not see. Changes of the script to `p.grad` there have no effect. In the
last micro-batch the sums are added and reduced over replicas before the call returns. Steps in one
piece stay as they are. Where micro-batches weigh the same, torch itself adds: `p.grad` is the sum
during the call. The zeros that the script sees are then the same tensors in all micro-batches of a
step. What it writes to them is cleared, unless by `.data`, which leaves no trace.

A loop body with a second backward call cannot be cut like that: its first call would give the whole
step's gradient, and its second call only a part. `repeats` says so.
"""

import functools
import weakref
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from gpq_agent.train.data.batches import Micro
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.ddp_buckets import Parameter, Share
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.gradients.reducer import Marks, Reducer, is_marked, mark
from gpq_agent.train.internals import (
    base_of,
    foreach_add_,
    foreach_mul_,
    foreach_zero_,
    version_of,
)
from gpq_agent.train.process.agreement import Agreement

FAILED = "a backward() failed in a batch that gpq cuts into parts, and the loop went on"
FAILED_HINT = "let the error end the script, or leave out max_local_batch"
NO_LAST = "optimizer.step() was called without backward() in the last part of a batch"
NO_LAST_HINT = "call backward() in every part, or leave out max_local_batch"
NOT_IN_ALL = "job.weigh() was called in only some micro-batches of a step"

_parameters_of = itemgetter("params")
_grad: Callable[[Any], torch.Tensor] = attrgetter("grad")
_layout = attrgetter("layout")
_has_history = attrgetter("requires_grad")  # of a gradient: after a call with create_graph


class Accumulator:
    """Works on all parameters of the job's optimizers.

    The gradient of the step is the weighted sum over its micro-batches, averaged over replicas.
    """

    def __init__(
        self, optimizers: Sequence[Any], probe: GradientProbe, reducer: Optional[Reducer]
    ) -> None:
        self.passes = 0  # backward calls in this micro-batch
        self.repeats = False  # did two calls of one micro-batch ever reach the parameters?
        self.last = True  # the place of the current micro-batch in its step
        self._open = False  # between enter and leave
        self._is_plain = False  # a whole step with equal shares, and gradients from backward calls
        self._accumulates = False  # the step has several micro-batches
        self._has_begun = False  # the step has had a backward call
        self._is_reached = False  # a call of this micro-batch reached the parameters
        self._hides = False  # the current call belongs to the sums, and `p.grad` shows zero
        self._adds = False  # the current call finds the sums in `p.grad`, so that torch adds
        self._runs = False  # the current call has not ended
        self._versions: List[int] = []  # of the sums before the call
        self._zeros: Dict[int, torch.Tensor] = {}  # that the script sees, by id of the parameter
        self._zero_versions: List[int] = []  # of these, when they were zero
        self._may_repeat = False  # a micro-batch had two calls, whatever they reached
        self.lost_some = False  # some earlier parameters of the optimizers are gone
        self._optimizers = list(optimizers)
        self._items: List[Parameter] = []  # as in the groups of the optimizers
        self._list: List[Parameter] = []  # each of them once
        self._current: List[Parameter] = []  # that the current call may reach
        self._marks: Marks = {}  # before the current call, if it matters
        self._probe = probe
        self._reducer = reducer  # None for one replica
        self._share = Share() if reducer is None else reducer.share

    def parameters(self) -> List[Parameter]:
        """The current parameters of the optimizers, in any module, trained from any time on. Each
        once. Returns the same list until they change."""
        groups: List[List[Parameter]] = []
        for optimizer in self._optimizers:
            groups += map(_parameters_of, optimizer.param_groups)
        items = groups[0] if len(groups) == 1 else list(chain.from_iterable(groups))
        if len(items) != len(self._items) or not all(map(is_, items, self._items)):
            self.lost_some |= not set(items).issuperset(self._items)
            self._items = list(items)
            self._list = list(dict.fromkeys(items))
        return self._list

    # -- around a micro-batch --------------------------------------------------------------------

    def enter(self, micro: Micro) -> None:
        """The body for this micro-batch is about to run. The same on each replica, except for the
        weight."""
        self._open = True
        self.passes = 0
        self._is_reached = False
        reducer = self._reducer
        if self._is_plain and not micro.in_pieces and micro.weight == self._share.weight:
            if reducer is not None:
                reducer.enter_again()
            return  # like the step before: it left nothing behind
        self._accumulates = micro.place > 0 or not micro.last
        self._is_plain = not micro.in_pieces
        self._share.weight, self.last = micro.weight, micro.last
        if micro.place == 0 and self._has_begun:
            self._end_step()
        if reducer is not None:
            reducer.enter(micro)

    def weigh(self, weight: float) -> None:
        """Set another weight, before the backward call. In every step on every replica, or
        never."""
        self._share.weight = weight
        self._is_plain = False

    def scale(self, factor: float) -> None:
        """Multiply what is accumulated so far."""
        self._probe.scale(factor)
        if self._share.sums:
            self._share.unit *= factor

    def leave(self, *, drop: bool) -> None:
        """The script is done with it. `drop`: the step will not happen, so forget its sums."""
        self._open = False
        if self._is_plain:
            return
        self._share.weight = 1.0
        if (self.last or drop) and self._has_begun:
            self._end_step()
        if self._reducer is not None:
            self._reducer.leave()

    def _end_step(self) -> None:
        self._share.clear()
        self._zeros.clear()
        self._has_begun = self._runs = False

    def check(self) -> None:
        """An optimizer is about to step. Raises GpqTrainError if the gradient of the step misses a
        part."""
        if self._runs:
            raise GpqTrainError(FAILED, FAILED_HINT)
        if self.last and self._share.sums:
            raise GpqTrainError(NO_LAST, NO_LAST_HINT)

    # -- around a backward call ------------------------------------------------------------------

    def backward_begins(self) -> None:
        """A backward call is about to run."""
        if not self._open:
            return
        self.passes += 1
        self._current = parameters = self.parameters()
        if self.passes == 1:
            self._probe.weights += self._share.weight
        else:
            self._may_repeat = True
        self._adds = False
        self._hides = self._accumulates and not (self.last and self._is_reached)
        if self._hides:
            self._show_sums(parameters)
        self._marks = {}
        if self._may_repeat and not self.repeats:
            self._marks = {item: mark(item) for item in parameters}
        if self._reducer is not None:
            # With several optimizers or several calls, this call may reach only some parameters.
            partial = self.passes > 1 or len(self._optimizers) > 1
            self._reducer.backward_begins(parameters, partial)

    def backward_ends(self) -> None:
        """The call has run, and gradients are in `p.grad`."""
        self._runs = False
        if not self._open:
            return
        reached: List[Parameter] = []
        if self._adds:
            reached = self._take_sums()
        elif self._hides:
            reached = self._current
            if any(map(is_, map(_grad, reached), repeat(None))):
                reached = [item for item in reached if item.grad is not None]
        elif self._marks:
            reached = [item for item in self._marks if not is_marked(item, self._marks)]
        if reached:
            self.repeats |= self._is_reached
            self._is_reached = True
        if not self.last:
            self._stash(reached)
        elif self._reducer is not None:
            self._reducer.backward_ends(with_sums=bool(reached))
            if reached:
                self._share.clear()
        elif self._hides and reached:
            self._restore(reached)

    # -- the sums --------------------------------------------------------------------------------

    def _show_sums(self, parameters: List[Parameter]) -> None:
        """A call of the step begins: `p.grad` is the sum if torch can add to it, else empty."""
        if self._runs:
            raise GpqTrainError(FAILED, FAILED_HINT)
        share, is_start = self._share, not self._has_begun
        self._has_begun = self._runs = True
        # At the start of a step, what the script has not cleared is a part of it. Later there are
        # zeros and what the script made of them, which has no effect.
        for item in parameters if is_start else ():
            if item.grad is not None:
                gradient = item.grad.detach()
                is_view = base_of(item.grad) is not None
                share.sums[id(item)] = gradient.clone() if is_view else gradient
        # On one replica the probe needs the gradient of each call, and on several DDP reduces the
        # last one.
        is_apart = self._probe.is_sampled if self._reducer is None else self.last
        self._adds = bool(share.sums) and share.weight == share.unit and not is_apart
        if self.last or not self._adds:
            self._zeros.clear()
        if not self._adds:
            for item in parameters:
                item.grad = None
            return
        self._versions = list(map(version_of, share.sums.values()))
        for item in parameters:
            item.grad = share.sums.get(id(item))

    def _take_sums(self) -> List[Parameter]:
        """The call ended that added to the sums. Leaves zero. Returns what it reached: nothing, or
        all that the step has reached so far."""
        sums, is_reached = self._share.sums, False
        if list(map(version_of, sums.values())) != self._versions:
            is_reached = True
        for item in self._current:
            gradient = item.grad
            if gradient is not None and gradient is not sums.get(id(item)):
                # The first gradient of this parameter, or a sum that torch did not make in place.
                sums[id(item)] = gradient.detach().clone()
                is_reached = True
        items = [item for item in self._current if id(item) in sums]
        if self.last and is_reached:
            return items
        zeros = self._zeros
        if zeros and list(map(version_of, zeros.values())) != self._zero_versions:
            foreach_zero_(list(zeros.values()))  # the script wrote to them
        for item in items:
            if id(item) not in zeros:
                zeros[id(item)] = torch.zeros_like(sums[id(item)])
            item.grad = zeros[id(item)]
        self._zero_versions = list(map(version_of, zeros.values()))
        return items if is_reached else []

    def _stash(self, parameters: List[Parameter]) -> None:
        """Move the gradients of this call into the sums. Leaves zero."""
        if not parameters or self._adds:
            return
        share, gradients = self._share, list(map(_grad, parameters))
        # Does nothing else hold these? A view is a part of a tensor of DDP's, and a function may
        # give one tensor to two parameters.
        can_move = all(map(is_, map(base_of, gradients), repeat(None)))
        can_move = can_move and True not in map(_has_history, gradients)
        can_move = can_move and {torch.strided}.issuperset(map(_layout, gradients))
        if can_move:
            can_move = len(set(map(torch.Tensor.data_ptr, gradients))) == len(gradients)
        if share.sums or share.weight <= 0.0 or not can_move:
            self._add(parameters)
            with torch.no_grad():
                foreach_zero_(gradients)
            return
        # The first of a step: the tensors themselves, which is faster than a copy.
        if self._reducer is None:
            self._probe.pass_ended(share.weight, touched=parameters)
        share.sums, share.unit = dict(zip(map(id, parameters), gradients)), share.weight
        for item, zero in zip(parameters, map(torch.zeros_like, gradients)):
            item.grad = self._zeros[id(item)] = zero
        self._zero_versions = list(map(version_of, self._zeros.values()))

    def _restore(self, parameters: List[Parameter]) -> None:
        """Complete the step in `p.grad`: the sums, and the gradients of this call."""
        if not self._adds:
            self._add(parameters)
        sums, unit = self._share.sums, self._share.unit
        if unit != 1.0:
            with torch.no_grad():
                foreach_mul_(list(sums.values()), unit)
        for item in self._current:
            if id(item) in sums:
                item.grad = sums[id(item)]
        self._share.clear()
        if self._reducer is None:
            self._probe.step_ended()

    def _add(self, parameters: List[Parameter]) -> None:
        """Add `p.grad` of these, times the weight, to the sums."""
        share = self._share
        if self._reducer is None:
            self._probe.pass_ended(share.weight, touched=parameters)
        factor, totals, parts = share.weight / share.unit, [], []
        with torch.no_grad():  # after a call with create_graph, gradients have a history
            for item, gradient in zip(parameters, map(_grad, parameters)):
                total = share.sums.get(id(item))
                if total is None:
                    share.sums[id(item)] = gradient * factor
                else:
                    totals.append(total)
                    parts.append(gradient)
            if totals:
                foreach_add_(totals, parts, alpha=factor)


class Weighing:
    """Applies `job.weigh`: micro-batches weigh amounts that the script gives, not examples.
    `is_used`: the script weighs this step. `called`: in the current micro-batch."""

    def __init__(self, gradients: Accumulator, agreement: Agreement, replicas: int) -> None:
        self.is_used = self.called = False
        self._gradients = gradients
        self._agreement = agreement
        self._replicas = replicas
        self._unit = 1.0  # this replica's gradients so far are multiples of it
        self._amount = 0.0  # of the micro-batches so far

    def check(self) -> None:
        """At the end of a body of a step that it weighs. Raises GpqTrainError."""
        if not self.called:
            raise GpqTrainError(NOT_IN_ALL, "call it in each")

    def weigh(self, micro: Micro, amount: float) -> None:
        """This micro-batch weighs this much. Collective in the last one of a step. Raises
        GpqTrainError."""
        gradients, replicas = self._gradients, self._replicas
        if gradients.passes:
            hint = "call it before backward()"
            raise GpqTrainError("job.weigh() was called after backward()", hint)
        if micro.place > 0 and not self.is_used:
            raise GpqTrainError(NOT_IN_ALL, "call it in each")
        amount = float(amount) if micro.indices else 0.0
        if not 0.0 <= amount < float("inf"):
            words = "job.weigh() needs a number that is at least 0, not {}".format(amount)
            raise GpqTrainError(words)
        if micro.place == 0:
            self.is_used, self._unit, self._amount = True, amount or 1.0, 0.0
        self._amount += amount
        self.called = True
        if not micro.last:
            gradients.weigh(amount / self._unit)
            return
        self._agreement.call = "job.weigh()"
        whole = self._agreement.all_reduce_sum([self._amount])[0]
        if whole <= 0.0:
            problem = "job.weigh() was given 0 in every micro-batch of a step"
            raise GpqTrainError(problem, "leave such batches out")
        gradients.scale(replicas * self._unit / whole)
        gradients.weigh(replicas * amount / whole)


class _Patch:
    """Of torch.autograd.backward."""

    def __init__(self) -> None:
        self.listeners: List["weakref.ref[Any]"] = []
        self.runs = False  # an outermost pass
        self.original: Any = None  # torch's own function


_patch = _Patch()


def listen(listener: Any) -> None:
    """From now on call its `backward_begins` and `backward_ends` around every outermost backward
    pass of this process, as long as somebody else keeps it. Passes within a pass, as in reentrant
    checkpointing, do not count. This is the only patch of torch.autograd.backward, which
    Tensor.backward calls."""
    _patch.listeners = [item for item in _patch.listeners if item() is not None]
    _patch.listeners.append(weakref.ref(listener))
    if _patch.original is not None:
        return
    _patch.original = original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        # Checkpointing may run nested calls in the engine's own threads, so one flag serves the
        # process.
        if _patch.runs or not _patch.listeners:
            original(*args, **kwargs)
            return
        _patch.runs = True
        try:
            for reference in _patch.listeners:
                listener = reference()
                if listener is not None:
                    listener.backward_begins()
            original(*args, **kwargs)
        finally:
            _patch.runs = False
        for reference in _patch.listeners:
            listener = reference()
            if listener is not None:
                listener.backward_ends()

    torch.autograd.backward = backward
