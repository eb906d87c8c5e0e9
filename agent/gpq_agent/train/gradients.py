"""What is in `p.grad` when: a script sees the gradient of a whole step in its last micro-batch, and zero in those before.

In micro-batches that only accumulate, what a backward pass leaves is moved, with its weight, into sums that the script does
not see: what it does to `p.grad` there is without effect, and no way of clearing gradients reaches them. In the last one they
are added, and reduced over replicas, before the call that ran the pass returns. Steps in one piece are left as they are.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from . import bulk
from .internals import foreach_add_, foreach_mul, foreach_mul_, foreach_zero_
from .probe import GradientProbe
from .reducing import Marks, Parameter, Reducer, is_as, is_marked, mark
from .zeros import Zeros, is_zero

KEPT = (
    1 << 20
)  # elements of gradients up to which zeros are kept from step to step: for small models, whose steps are short


class Gradients:
    """Of all parameters of the job's optimizers, whatever module they belong to and whenever they began to be trained.

    `weight` is the factor on what the coming passes of this micro-batch compute: the gradient of the step is the weighted
    sum over its micro-batches, averaged over replicas.
    """

    def __init__(self, optimizers: Sequence[Any], probe: GradientProbe, reducer: Optional[Reducer]) -> None:
        self.weight = 1.0
        self.passes = 0  # in this micro-batch
        self.changed_between = False  # the script changed gradients between two passes that only accumulate
        self.carried = False  # what an optimizer has made a step of is still there at the next pass
        self._optimizers = list(optimizers)
        self._probe = probe
        self._reducer = reducer  # None: one replica
        self.in_pieces = False  # the step is cut into micro-batches, or into unlike shares: the same on every replica
        self._open = False  # between enter and leave
        self.last = True  # of its step: the micro-batch in hand
        self._place = 0
        self._sums: Dict[Parameter, torch.Tensor] = {}
        # Instead of those: of all parameters, as the one pass so far has left them. What most loops need, and no more.
        self._whole: List[torch.Tensor] = []
        self._held: Dict[Parameter, torch.Tensor] = {}  # of before the pass that runs, while it runs
        self._closed: Set[Parameter] = set()  # the optimizer of these has made its step in this micro-batch
        self._hidden: Set[Parameter] = set()  # passes of this micro-batch that only accumulates have reached them
        # Of both, what is not in those sets yet: only a further pass of the same micro-batch wants to know.
        self._closing: List[Any] = []
        self._hiding: List[Parameter] = []
        self._unit = 1.0  # what the sums are multiples of: the weight of the first micro-batch
        self._identities: List[int] = []
        self.replaced = False  # parameters of an optimizer have made room for others, since the first step
        self._watched: Optional[Marks] = None
        self._all: List[Parameter] = []
        self._small = True  # their gradients are
        self._zeros: Marks = {}  # gradients that were moved away in this step: zero, until the script changes them
        self._spare = Zeros()  # those of earlier steps
        self._sparse = False  # some of the sums are
        self._before: Marks = {}  # the pass that runs
        self._reaching: List[Parameter] = []  # what that pass may leave a gradient to
        # Of one parameter of each optimizer, what its step was made of, while nothing clears it.
        self._used: Dict[int, Tuple[Parameter, Optional[torch.Tensor], int]] = {}
        self._tainted: Set[Parameter] = set()  # of those: a pass has added to it since

    # -- around a micro-batch ------------------------------------------------------------------------------------------

    def enter(self, place: int, micro_batches: int, weight: float, *, even: bool) -> None:
        """The script is about to be given micro-batch `place` of so many. `even`: all replicas have equally much of the step;
        the same on each."""
        self._place, self.weight = place, weight
        self.in_pieces = micro_batches > 1 or not even
        self.last = place == micro_batches - 1
        self._open = True
        self.passes = 0
        self.changed_between = False
        self._closed.clear()
        self._hidden.clear()
        self._closing.clear()
        self._hiding = []
        if place == 0:
            self._drop_sums()
            self._zeros.clear()
            self._sparse = False
            if micro_batches == 1:
                self._spare.forget()
        if self._reducer is not None:
            self._reducer.enter(self.last, accumulates=micro_batches > 1, even=even)

    def weigh(self, weight: float) -> None:
        """Another weight, before a pass of this micro-batch. In every step on every replica, or nowhere."""
        self.weight = weight
        self.in_pieces = True
        if self._reducer is not None:
            self._reducer.weigh()

    def leave(self, *, drop: bool) -> None:
        """The script is done with it. `drop`: the step will not happen: forget what it has accumulated."""
        self._open = False
        self._held.clear()
        self._before.clear()
        if self.last or drop:
            self._drop_sums()
            self._zeros.clear()
        if self._reducer is not None:
            self._reducer.leave()

    def _drop_sums(self) -> None:
        self._sums.clear()
        self._whole = []

    def _spread(self) -> None:
        """The sums one by one: they will not be added to as a whole."""
        if self._whole:
            self._sums = dict(zip(self.parameters(), self._whole))
            self._whole = []

    def close(self, optimizer: Any) -> None:
        """The script has called this optimizer's step in a micro-batch that only accumulates: what further passes leave to
        its parameters here would have been cleared before its next step."""
        self._closing.append(optimizer)

    def _catch_up(self) -> None:
        """There is a further pass in this micro-batch: note what those before it have left."""
        for optimizer in self._closing:
            self._closed.update(_of(optimizer))
        self._closing.clear()
        self._hidden.update(self._hiding)
        self._hiding = []

    def used(self, optimizer: Any) -> None:
        """This optimizer has made a step of what is in `p.grad`."""
        if self._tainted:
            self.carried |= not self._tainted.isdisjoint(_of(optimizer))
            self._tainted.difference_update(_of(optimizer))
        for group in optimizer.param_groups:
            for item in group["params"]:
                if item.grad is not None:
                    self._used[id(item)] = (item, *mark(item))
                    return

    def _taint(self) -> None:
        """A pass has added to what a step was made of, and what the script has not cleared: if it is not cleared before the
        next step of that optimizer, it goes into two."""
        for item, gradient, version in list(self._used.values()):
            if not is_as(item, gradient, version):
                self._used[id(item)] = (item, *mark(item))
                self._tainted.add(item)

    def _forget_cleared(self) -> None:
        """The script has cleared, or changed, what a step was made of: it goes into no other."""
        for item, gradient, version in list(self._used.values()):
            if not is_as(item, gradient, version) or self._is_cleared_unseen(item):
                del self._used[id(item)]
                self._tainted.discard(item)

    def _is_cleared_unseen(self, parameter: Parameter) -> bool:
        """Is what its optimizer has made a step of zero, though no version says so: `p.grad.data.zero_()`? Waits for the
        device."""
        if self.carried or parameter.grad is None or not is_zero([parameter.grad.detach()]):
            return False  # told already, or nothing is cleared: there is nothing to look for
        own = next(each for each in self._optimizers if any(item is parameter for item in _of(each)))
        return is_zero(_gradients(_of(own)))

    def scale(self, factor: float) -> None:
        """Multiply what is accumulated so far."""
        self._probe.scaled(factor)
        self._unit *= factor

    def parameters(self) -> List[Parameter]:
        """Each parameter once."""
        groups = [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]
        identities = [id(item) for parameters in groups for item in parameters]
        if identities != self._identities:
            self.replaced |= not set(identities).issuperset(self._identities)
            self._identities = identities
            if self._whole:  # what the step has accumulated is of those before
                self._sums, self._whole = dict(zip(self._all, self._whole)), []
            self._all = list(dict.fromkeys(item for optimizer in self._optimizers for item in _of(optimizer)))
            self._small = sum(item.numel() for item in self._all) <= KEPT
        return self._all

    def held(self) -> List[torch.Tensor]:
        """What is kept here of gradients."""
        return [*self._whole, *self._sums.values(), *self._spare.all()]

    # -- around a backward pass ----------------------------------------------------------------------------------------

    def begin_pass(self, roots: Sequence[Any] = (), given: Sequence[Any] = ()) -> None:
        if not self._open:
            return
        self.passes += 1
        if self._closing or self._hiding:
            self._catch_up()
        parameters = self.parameters()
        # One optimizer, one pass so far: it is no question what the pass reaches.
        simple = len(self._optimizers) == 1 and self.passes == 1
        if self.passes == 1:
            self._probe.weights += self.weight
        if self._place == 0 and self._used:  # later nothing reaches what the step has accumulated
            self._forget_cleared()
        in_pieces = self.in_pieces
        if in_pieces:
            self._clear_the_way(parameters, simple)
        if self._reducer is not None:
            watch = self.passes > 1 or len(self._optimizers) > 1
            self._reducer.begin_pass(parameters, self._sums, self._unit, self.weight, watch)
        self._reaching = parameters
        self._before = {}
        if in_pieces and not simple and (self._reducer is None or not self.last):  # else the reducer does the same
            self._before = {item: mark(item) for item in parameters}

    def _clear_the_way(self, parameters: List[Parameter], simple: bool) -> None:
        """So that the pass can tell what it computes from what there is, or adds to all that there is."""
        if simple and self._may_bring_back(parameters):
            self._bring_back(parameters)
            return
        self._spread()
        if self._sums:
            self._spare.forget()  # there are two copies already
        self._make_room(parameters)

    def watch(self) -> None:
        """After `begin_pass`: `is_reached` will be asked."""
        self._watched = None
        if self._open:
            chosen = [item for each in self._optimizers for item in _some(_of(each))]
            self._watched = {item: mark(item) for item in chosen}

    def is_reached(self) -> bool:
        """Has the pass that has just run reached any optimizer's parameters? Asked of a few of each; before `end_pass`."""
        if not self._open or self._watched is None:
            return False
        gradients = [item for item in self._watched if item.grad is not None]
        return any(item.grad is not None and not is_marked(item, self._watched) for item in gradients)

    def end_pass(self) -> None:
        if not self._open:
            return
        if not self.in_pieces:
            if self._reducer is not None:
                self._reducer.end_pass({})
            self._taint()
            return
        if not self.last:
            self._hide(self._reaching)
        elif self._reducer is not None:
            self._reducer.end_pass(self._waiting(self._reducer.touched()) if self._sums else {})
        else:
            self._show(self._reaching)
        for parameter, held in self._held.items():
            parameter.grad = held if parameter.grad is None else parameter.grad.detach().add_(held)
        self._held.clear()
        self._taint()

    def adopt(self) -> None:
        """Gradients that came without a backward pass (`p.grad = ...`): treat what is there as that of one."""
        self.passes += 1
        self._catch_up()
        self._spread()
        self._before = {}
        parameters = [item for item in self.parameters() if item.grad is not None]
        if not self.last:
            self._hide(parameters)
            return
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(self.weight)
            if parameter in self._sums:
                parameter.grad.add_(self._sums.pop(parameter), alpha=self._unit)
        if self._reducer is not None:
            self._reducer.average(self.parameters())

    def _may_bring_back(self, parameters: List[Parameter]) -> bool:
        """May the pass add to the sums themselves? Where it reaches all that they are of, and nobody wants to know what it
        has computed by itself."""
        if not (self._whole or self._sums) or self._sparse or self._closed:
            return False
        if self.weight == 0.0 or self._probe.wants_parts:
            return False
        reducer = self._reducer
        return reducer is None or not self.last or (reducer.is_plain(parameters) and not reducer.keeps_views)

    def _bring_back(self, parameters: List[Parameter]) -> None:
        """Let the pass add to the sums, in `p.grad`, where nobody sees them meanwhile."""
        if self._unit != self.weight:
            foreach_mul_(self._whole or list(self._sums.values()), self._unit / self.weight)
        bulk.put(parameters, self._whole or [self._sums.get(parameter) for parameter in parameters])
        self._drop_sums()
        self._zeros.clear()

    def _make_room(self, parameters: List[Parameter]) -> None:
        """So that after the pass `p.grad` holds what that pass computed, and nothing else."""
        if not self._hidden and not bulk.has_any(bulk.gradients_of(parameters)):  # as the first pass of a step finds it
            self._zeros.clear()
            return
        later = self.passes > 1
        for parameter in parameters:
            gradient = parameter.grad
            hidden = self._was_hidden(parameter)
            if gradient is None:
                self._zeros.pop(parameter, None)  # the script has cleared them by taking them away: let go of them, too
                self.changed_between |= hidden
            elif (self._place == 0 and parameter not in self._hidden) or (later and self.last):
                # What was there before the pass is a part of the step, unless the script clears it yet.
                self._held[parameter] = gradient.clone() if gradient._base is not None else gradient
                parameter.grad = None
            elif is_marked(parameter, self._zeros):
                gradient.data.zero_()  # whatever its version says: there are ways past it
            else:
                self.changed_between |= hidden
                gradient.detach().zero_()

    def _was_hidden(self, parameter: Parameter) -> bool:
        """Has an earlier pass of this micro-batch left something to it that no step has taken yet?"""
        return not self.last and parameter in self._hidden and parameter not in self._closed

    def _hide(self, parameters: List[Parameter]) -> None:
        """Move the gradients of this pass into the sums."""
        if self._hide_whole(parameters):
            return
        self._spread()
        touched = self._touched(parameters)
        if self._reducer is None:
            self._probe.pass_ended(self.weight, touched=touched)
        if not self._sums:
            self._unit = self.weight or 1.0
        factor = self.weight / self._unit
        if self._sums or self._held or self._closed or factor != 1.0:
            self._add(touched, factor)
        else:
            self._take(touched, factor)
        self._hiding += touched

    def _hide_whole(self, parameters: List[Parameter]) -> bool:
        """Where they are the first of the step, and of all parameters: the same, all at once. False: not done."""
        if self._sums or self._whole or self._held or self._closed or self._before or not self._small:
            return False
        gradients = bulk.complete(bulk.gradients_of(parameters))
        if self.weight == 0.0 or gradients is None or not bulk.are_plain(gradients):
            return False
        if self._reducer is None:
            self._probe.pass_ended(self.weight, touched=parameters)
        self._unit = self.weight
        self._whole = gradients
        self._spare.put(parameters, gradients)
        self._zeros = dict(self._spare.marks)
        self._hiding += parameters
        return True

    def _add(self, touched: List[Parameter], factor: float) -> None:
        """Gradients to the sums that there are; zero is left."""
        found = [item for item in touched if item not in self._closed]
        for parameter in found:
            if parameter in self._held:
                self._sums[parameter] = self._held.pop(parameter).div_(self._unit)
        self._add_sparse(found, factor)
        known = [item for item in found if item.grad is not None and item in self._sums]
        if known:
            foreach_add_([self._sums[item] for item in known], _gradients(known), alpha=factor)
        cleared = known + [item for item in touched if item in self._closed and item.grad is not None]
        if cleared:
            self._clear(cleared)
        self._take([item for item in found if item not in self._sums], factor)

    def _add_sparse(self, parameters: List[Parameter], factor: float) -> None:
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                part = parameter.grad * factor
                self._sums[parameter] = self._sums[parameter] + part if parameter in self._sums else part
                self._sparse = True
                parameter.grad = None

    def _take(self, parameters: List[Parameter], factor: float) -> None:
        """The first gradients of a step become the sums as they are, where their weight is the unit: that is cheaper than a
        copy. Not where they are parts of a bucket, which is filled again."""
        gradients = [(item, item.grad) for item in parameters]
        taken = {
            item: part.detach() if part.requires_grad else part
            for item, part in gradients
            if factor == 1.0 and part is not None and part._base is None and not part.is_sparse
        }
        self._sums.update(taken)
        self._leave_zeros(taken)
        if len(taken) == len(parameters):
            return
        others = [item for item in parameters if item not in taken]
        self._add_sparse(others, factor)
        copied = [item for item in others if item.grad is not None]
        if copied:
            self._sums.update(zip(copied, foreach_mul(_gradients(copied), factor)))
            self._clear(copied)

    def _leave_zeros(self, taken: Dict[Parameter, torch.Tensor]) -> None:
        """Zero in `p.grad`, in the place of these."""
        if not taken:
            return
        parameters, parts = list(taken), list(taken.values())
        if self._small:
            self._spare.put(parameters, parts)
        else:
            bulk.put(parameters, list(map(torch.zeros_like, parts)))
        self._zeros.update((item, mark(item)) for item in parameters)

    def _clear(self, parameters: List[Parameter]) -> None:
        foreach_zero_(_gradients(parameters))
        self._zeros.update((item, mark(item)) for item in parameters)

    def _show(self, parameters: Iterable[Parameter]) -> None:
        """One replica, last micro-batch: the step is complete for the optimizers whose parameters the pass has reached."""
        touched = self._touched(parameters)
        self._probe.pass_ended(self.weight, touched=touched)
        if self.weight != 1.0:
            for item in [item for item in touched if item.grad is not None and item.grad.is_sparse]:
                item.grad = item.grad * self.weight if item.grad is not None else None
            dense = [
                item.detach() for item in (each.grad for each in touched) if item is not None and not item.is_sparse
            ]
            if dense:
                foreach_mul_(dense, self.weight)
        waits = self._waiting(set(touched)) if self._sums else {}
        for parameter, waiting in waits.items():
            if parameter.grad is None or waiting.is_sparse:
                share = waiting * self._unit
                parameter.grad = share if parameter.grad is None else parameter.grad + share
            else:
                parameter.grad.detach().add_(waiting, alpha=self._unit)
        self._probe.step_ended()

    def _touched(self, parameters: Iterable[Parameter]) -> List[Parameter]:
        """What the pass has left a gradient to."""
        if not self._before:
            return [item for item in parameters if item.grad is not None]
        return [item for item in parameters if item.grad is not None and not is_marked(item, self._before)]

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


def _some(parameters: List[Parameter]) -> List[Parameter]:
    """The first, the middle and the last that are trained."""
    trained = [item for item in parameters if item.requires_grad]
    return [trained[0], trained[len(trained) // 2], trained[-1]] if trained else []


def _gradients(parameters: Iterable[Parameter]) -> List[torch.Tensor]:
    # Detached: after a pass with create_graph a gradient has a history of its own, which adding must not extend.
    return [item.grad.detach() for item in parameters if item.grad is not None]
