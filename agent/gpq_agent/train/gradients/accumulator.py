"""Decides what is in `p.grad`: a whole step's gradient in its last micro-batch, and zero before.

In micro-batches that only accumulate, the result of a backward call moves, with its weight, into
sums that the script does not see. Changes of the script to `p.grad` there have no effect. In the
last micro-batch the sums are added and reduced over replicas before the call returns. Steps in one
piece stay as they are.
"""

from typing import Any, Dict, List, Optional, Sequence, Set

import torch

from gpq_agent.train.data.batches import Micro
from gpq_agent.train.internals import base_of
from gpq_agent.train.noise.probe import GradientProbe

from . import flat
from .micro_sums import MicroSums
from .parameters import JobParameters, Parameter, Reach, is_marked, mark, parameters_of
from .reducer import Reducer


class Accumulator:
    """Works on all parameters of the job's optimizers.

    The gradient of the step is the weighted sum over its micro-batches, averaged over replicas.
    `weight` is the factor on the results of the next backward calls of this micro-batch.
    """

    def __init__(
        self,
        optimizers: Sequence[Any],
        probe: GradientProbe,
        reducer: Optional[Reducer],
    ) -> None:
        self.weight = 1.0
        self.passes = 0  # backward calls in this micro-batch
        self.changed_between = False  # did the script change gradients between two of those calls?
        # The step consists of micro-batches or of unequal shares: the same on every replica.
        self.in_pieces = False
        self.last = True  # the place of the current micro-batch in its step
        self._open = False  # between enter and leave
        self._is_plain = False  # a whole step, whose gradients come only from backward calls
        self._parameters = JobParameters(optimizers)
        self._probe = probe
        self._reducer = reducer  # None for one replica
        self._sums = MicroSums(self._parameters)
        self._micro = Recipients()
        self._reach = Reach()
        self._aside: Dict[Parameter, torch.Tensor] = {}  # during a call: the gradients before it

    @property
    def lost_some(self) -> bool:
        """Are some earlier parameters of the optimizers gone?"""
        return self._parameters.lost_some

    # -- around a micro-batch --------------------------------------------------------------------

    def enter(self, micro: Micro) -> None:
        """The body for this micro-batch is about to run. The same on each replica, except for the
        weight."""
        self._open = True
        self.passes = 0
        reducer = self._reducer
        if self._is_plain and not micro.in_pieces and micro.weight == self.weight:
            if reducer is not None:
                reducer.enter_again()
            return  # like the step before: it left nothing behind
        self.in_pieces = micro.in_pieces
        self._is_plain = not micro.in_pieces
        self.weight, self.last = micro.weight, micro.last
        self.changed_between = False
        self._micro.begin(micro.place)
        if micro.place == 0:
            self._sums.begin(in_one_piece=micro.last)
        if reducer is not None:
            reducer.enter(micro)

    def weigh(self, weight: float) -> None:
        """Set another weight, before the backward call. In every step on every replica, or
        never."""
        self.weight = weight
        self.in_pieces, self._is_plain = True, False
        if self._reducer is not None:
            self._reducer.weigh()

    def leave(self, *, drop: bool) -> None:
        """The script is done with it. `drop`: the step will not happen, so forget its sums."""
        self._open = False
        if self._is_plain:
            return
        self._aside.clear()
        self._reach.previous.clear()
        if self.last or drop:
            self._sums.end()
        if self._reducer is not None:
            self._reducer.leave()

    def close(self, optimizer: Any) -> None:
        """The script called this optimizer's step in a micro-batch that only accumulates. In plain
        PyTorch, its next step would not see what further backward calls here leave to its
        parameters."""
        self._is_plain = False
        self._micro.new_steps.append(optimizer)

    def scale(self, factor: float) -> None:
        """Multiply what is accumulated so far."""
        self._is_plain = False
        self._probe.scaled(factor)
        self._sums.unit *= factor

    def parameters(self) -> List[Parameter]:
        """The current parameters of the optimizers, each once."""
        return self._parameters.current()

    # -- around a backward call ------------------------------------------------------------------

    def backward_begins(self) -> None:
        """A backward call is about to run."""
        if not self._open:
            return
        micro, reach = self._micro, self._reach
        self.passes += 1
        if micro.new_steps or micro.new_recipients:
            micro.catch_up()
        parameters = self._parameters.current()
        # With several optimizers or several calls, this call may reach only some parameters.
        partial = self.passes > 1 or self._parameters.of_several
        if self.passes == 1:
            self._probe.weights += self.weight
        in_pieces = self.in_pieces
        if in_pieces:
            self._clear_the_way(parameters, partial)
        reducer, sums = self._reducer, self._sums
        if reducer is not None:
            reducer.backward_begins(parameters, sums.by_parameter, sums.unit, self.weight, partial)
        reach.parameters, reach.previous = parameters, {}
        # If gradients are reduced, the reducer marks them.
        if in_pieces and partial and (reducer is None or not self.last):
            reach.previous = {item: mark(item) for item in parameters}

    def watch(self) -> None:
        """After `backward_begins`: `is_reached` will be asked."""
        self._reach.sample(self._parameters.samples())

    def is_reached(self) -> bool:
        """Did the last call reach parameters? Asked before `backward_ends`."""
        return self._open and self._reach.hits_samples()

    def backward_ends(self) -> None:
        """The call has run, and gradients are in `p.grad`."""
        if not self._open:
            return
        if not self.in_pieces:
            if self._reducer is not None:
                self._reducer.backward_ends({})
            return
        if not self.last:
            self._stash(self._reach.parameters)
        elif self._reducer is not None:
            self._reducer.backward_ends(self._pop_sums(self._reducer))
        else:
            self._restore(self._reach.parameters)
        for parameter, previous in self._aside.items():
            gradient = parameter.grad
            parameter.grad = previous if gradient is None else gradient.detach().add_(previous)
        self._aside.clear()

    def adopt(self) -> None:
        """Gradients arrived without a backward call (`p.grad = ...`). Treat them as the result of
        one."""
        self.passes += 1
        self._is_plain = False
        self._micro.catch_up()
        self._sums.split()
        self._reach.previous = {}
        parameters = [item for item in self._parameters.current() if item.grad is not None]
        if not self.last:
            self._stash(parameters)
            return
        self._sums.restore_manual(parameters, self.weight)
        if self._reducer is not None:
            self._reducer.average(self._parameters.current())

    # -- before it -------------------------------------------------------------------------------

    def _clear_the_way(self, parameters: List[Parameter], partial: bool) -> None:
        """Prepare so that the call's gradients can be told from earlier ones, or are added to all
        of them."""
        sums = self._sums
        if not partial and self._can_resume(parameters):
            sums.resume_from_sums(parameters, self.weight)
            return
        sums.split()
        if sums.by_parameter:
            sums.spare.forget()  # there are two copies already
        self._set_aside(parameters)

    def _can_resume(self, parameters: List[Parameter]) -> bool:
        """May the call add to the sums directly, in `p.grad`? Yes if it reaches all their
        parameters, and nobody needs its own result."""
        sums = self._sums
        if not (sums.row or sums.by_parameter) or sums.any_sparse or self._micro.past_step:
            return False
        if self.weight == 0.0 or self._probe.wants_parts:
            return False
        reducer = self._reducer
        if reducer is None or not self.last:
            return True
        return reducer.is_plain(parameters) and not reducer.keeps_views

    def _set_aside(self, parameters: List[Parameter]) -> None:
        """Prepare so that `p.grad` holds only the result of the call afterwards."""
        micro, zeros = self._micro, self._sums.zeros
        if not micro.recipients and not flat.has_any(flat.gradients_of(parameters)):
            zeros.clear()  # as the first call of a step finds it
            return
        later = self.passes > 1
        # Earlier calls of this micro-batch left them something that no step has used yet.
        leftovers = set() if self.last else micro.recipients - micro.past_step
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                zeros.pop(parameter, None)  # the script took it away, so release it too
                self.changed_between |= parameter in leftovers
            elif (micro.place == 0 and parameter not in micro.recipients) or (later and self.last):
                # It is part of the step, unless the script still clears it.
                self._aside[parameter] = gradient if base_of(gradient) is None else gradient.clone()
                parameter.grad = None
            elif is_marked(parameter, zeros):
                gradient.data.zero_()  # do not trust its version: some writes do not change it
            else:
                self.changed_between |= parameter in leftovers
                gradient.detach().zero_()

    # -- after it --------------------------------------------------------------------------------

    def _stash(self, parameters: List[Parameter]) -> None:
        """Move the gradients of this call into the sums."""
        if self._stash_row(parameters):
            return
        self._sums.split()
        recipients = self._reach.recipients(parameters)
        if self._reducer is None:
            self._probe.pass_ended(self.weight, touched=recipients)
        self._sums.stash(recipients, self.weight, self._micro.past_step, self._aside)
        self._micro.new_recipients += recipients

    def _stash_row(self, parameters: List[Parameter]) -> bool:
        """The same for all parameters at once, at the start of a step. Returns False elsewhere."""
        sums = self._sums
        if sums.by_parameter or sums.row or self._aside:
            return False
        if self._micro.past_step or self._reach.previous:
            return False
        if self.weight == 0.0 or not self._parameters.are_small:
            return False
        gradients = flat.complete(flat.gradients_of(parameters))
        if gradients is None or not flat.are_plain(gradients):
            return False
        if self._reducer is None:
            self._probe.pass_ended(self.weight, touched=parameters)
        sums.take_row(parameters, gradients, self.weight)
        self._micro.new_recipients += parameters
        return True

    def _restore(self, parameters: List[Parameter]) -> None:
        """One replica, last micro-batch: complete the step for the optimizers that the call
        reached."""
        recipients = self._reach.recipients(parameters)
        self._probe.pass_ended(self.weight, touched=recipients)
        self._sums.restore(recipients, self.weight, self._micro.past_step)
        self._probe.step_ended()

    def _pop_sums(self, reducer: Reducer) -> Dict[Parameter, torch.Tensor]:
        """Several replicas, last micro-batch: the sums of the optimizers that the call reached."""
        if not self._sums.by_parameter:
            return {}
        return self._sums.pop(reducer.recipients(), self._micro.past_step)


class Recipients:
    """What has happened in the current micro-batch, for a further backward call in it.

    Most have only one. So this only takes notes, and `catch_up` makes sets of them.
    """

    def __init__(self) -> None:
        self.place = 0  # in its step
        self.recipients: Set[Parameter] = set()  # whose gradients were stashed
        self.past_step: Set[Parameter] = set()  # whose optimizer made its step
        # Notes that are not in the sets yet.
        self.new_recipients: List[Parameter] = []
        self.new_steps: List[Any] = []  # optimizers

    def begin(self, place: int) -> None:
        """Another micro-batch."""
        self.place = place
        self.past_step.clear()
        self.recipients.clear()
        self.new_steps.clear()
        self.new_recipients = []

    def catch_up(self) -> None:
        """Another backward call in this micro-batch is about to run."""
        for optimizer in self.new_steps:
            self.past_step.update(parameters_of(optimizer))
        self.new_steps.clear()
        self.recipients.update(self.new_recipients)
        self.new_recipients = []
