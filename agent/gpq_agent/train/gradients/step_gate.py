"""Makes optimizers, schedulers and a GradScaler act once per optimizer step, at its learning rate.

Micro-batches that only accumulate have no effect. Schedulers and checkpoints only ever see the base
rate. In evaluations and after the training everything works as in plain PyTorch.
"""

import functools
import types
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from gpq_agent.train.data.batches import Micro
from gpq_agent.train.gradients.accumulator import Accumulator
from gpq_agent.train.gradients.lr_rules import UNCHANGED, adjust_for_step
from gpq_agent.train.gradients.progress import ScheduleClock
from gpq_agent.train.internals import version_of

if TYPE_CHECKING:
    from gpq_agent.train.loop.loop import TrainingLoop


class BodyFacts(NamedTuple):
    """What a loop body did: was a step called, and which optimizers did not step? Was there a
    backward pass? What did the script ask for? Was a scheduler called? Did a GradScaler skip the
    step? Are there more groups?"""

    stepped: bool
    idle: Tuple[str, ...]
    has_gradients: bool
    asked_step: bool
    asked_sync: bool
    scheduled: bool
    skipped: bool
    groups_added: bool


class StepGate:
    """Wraps the optimizers of one job in place. The engine brackets every micro-batch with `enter`
    and `leave`.

    micro: the current micro-batch, None outside the loop.
    stepped: the step() of an optimizer was called in it.
    asked_sync: the script has asked for job.at_step since the last micro-batch ended.
    resumes_epoch: the epoch began in an earlier attempt, and no micro-batch of it is done here.
    """

    def __init__(
        self,
        optimizers: Sequence[Any],
        gradients: Accumulator,
        steps: "TrainingLoop",
        report: Callable[[str], None],
        rate_set: Callable[[], None],
    ) -> None:
        """`report`: called with the code of a habit. `rate_set`: the loop sets a learning rate, or
        a scheduler to a place, by its own count."""
        self.micro: Optional[Micro] = None
        self.stepped = self.asked_sync = self.resumes_epoch = False
        self._asked_step = False  # the script asked for job.step since the last micro-batch ended
        self._optimizers = list(optimizers)
        self._gradients = gradients
        self._steps, self._report, self._rate_set = steps, report, rate_set
        # Optimizers whose step() was called in this micro-batch.
        self._stepper_ids: Set[int] = set()
        self._in_step = False  # during a real step: an optimizer may use others
        self._rates: List[Any] = []  # as they should be. None are before the first note
        self._skipped = False  # a GradScaler skipped the step of this micro-batch
        self._scheduled = False  # a scheduler was called in this micro-batch
        self._group_count = len(self._measure_rates())
        for optimizer in self._optimizers:
            for part in (optimizer, *inner_optimizers(optimizer)):
                self._wrap_step(part, optimizer)
                self._wrap_zero_grad(part)

    @property
    def last(self) -> bool:
        """Is the coming optimizer.step() a real one?"""
        return self.micro is None or self.micro.last

    def owns(self, optimizer: Any) -> bool:
        """Is it one of the job's own optimizers, not an inner one?"""
        return any(optimizer is item for item in self._optimizers)

    # -- called by the engine ----------------------------------------------------------------------

    def enter(self, micro: Micro) -> None:
        """The script is about to get this micro-batch."""
        self.micro, self.stepped = micro, False
        self._stepper_ids.clear()

    def leave(self) -> BodyFacts:
        """The body of the loop is over for this micro-batch. Returns what it did."""
        rates = self._check_rates()
        idle: Tuple[str, ...] = ()
        steppers = self._stepper_ids
        if len(steppers) < len(self._optimizers):
            lazy = (item for item in self._optimizers if id(item) not in steppers)
            idle = tuple(type(item).__name__ for item in lazy)
        facts = BodyFacts(
            self.stepped,
            idle,
            self._gradients.passes > 0,
            self._asked_step,
            self.asked_sync,
            self._scheduled,
            self._skipped,
            len(rates) > self._group_count,
        )
        self.asked_sync = self._asked_step = self._scheduled = self._skipped = False
        self.resumes_epoch = False
        self.micro = None
        return facts

    # -- called by the job -------------------------------------------------------------------------

    def ask_step(self) -> None:
        """The script asks for job.step, so from now on it may set what follows a count of steps."""
        if self.micro is not None and not self._asked_step:
            self._check_rates()
        self._asked_step = True

    # -- called by the wrapped scaler and schedulers -----------------------------------------------

    def note_rates(self) -> None:
        """The learning rates are as they should be."""
        self._rates = self._measure_rates()

    def note_schedule(self, placed: bool) -> None:
        """A scheduler's step() was called. `placed`: with its place in the schedule."""
        self._scheduled = self.micro is not None
        if placed and self._scheduled and not self._asked_step:
            self._rate_set()

    def end_scaler_step(self, optimizer: Any) -> None:
        """The GradScaler is done. If gradients were infinite, it did not step the optimizer."""
        if id(optimizer) not in self._stepper_ids:
            self._skipped = True
            self._finish_step(optimizer, applied=False)

    def hold(self, optimizer: Any) -> None:
        """Its step() was called in a micro-batch that only accumulates."""
        self.stepped = True
        self._stepper_ids.add(id(optimizer))

    def _wrap_step(self, part: Any, optimizer: Any) -> None:
        """Is `part` the `optimizer`, or an inner one of it?"""
        step = part.step
        # Some optimizers write their own rates into their groups. Those of torch do not.
        writes_rates = not type(part).__module__.startswith("torch.optim.")

        @functools.wraps(step)
        def gated_step(_: Any, *args: Any, **kwargs: Any) -> Any:
            micro = self.micro
            if micro is None:
                if not self._in_step:
                    self._steps.outside()
                return step(*args, **kwargs)
            if self._in_step:
                return step(*args, **kwargs)
            if micro.last:  # otherwise no step is made, and the rates at the end of the body count
                self._check_rates()
            has_closure = bool(args or kwargs) and self._has_closure(*args, **kwargs)
            if not has_closure and (micro.in_pieces or not self._gradients.passes):
                self.check_gradients()
            if not micro.last:
                self.hold(optimizer)
                return None
            self._in_step = True
            try:
                adjustment = self._steps.adjustment(optimizer)
                if adjustment is UNCHANGED:
                    result = step(*args, **kwargs)
                else:
                    with adjust_for_step(optimizer, adjustment):
                        result = step(*args, **kwargs)
            finally:
                self._in_step = False
            if writes_rates:
                self.note_rates()
            self._finish_step(optimizer, applied=True)
            return result

        # On the instance, like torch's own schedulers, which need a method. The class and other
        # optimizers stay unchanged.
        part.__dict__.update(step=types.MethodType(gated_step, part))

    def _wrap_zero_grad(self, part: Any) -> None:
        """A faster zero_grad() for micro-batches that only accumulate, in which plain PyTorch would
        not call it. torch's own does the same more slowly, with a mark for profilers."""
        if "zero_grad" in vars(part) or type(part).zero_grad is not torch.optim.Optimizer.zero_grad:
            return
        plain = part.zero_grad

        def zero_grad(instance: Any, set_to_none: bool = True) -> None:
            if self.micro is None or self.micro.last or not set_to_none:
                plain(set_to_none)
                return
            for group in instance.param_groups:
                for item in group["params"]:
                    item.grad = None

        part.__dict__.update(zero_grad=types.MethodType(functools.wraps(plain)(zero_grad), part))

    def _has_closure(self, closure: Any = None, *args: Any, **kwargs: Any) -> bool:
        """Is step() called with a closure? Reports what it is called with."""
        if callable(closure):
            self._steps.alone("closure")
            return True
        values = (closure, *args, *kwargs.values())
        if any(isinstance(item, (torch.Tensor, float)) for item in values):
            self._report("step-value")
        return False

    def check_gradients(self) -> None:
        """An optimizer of the job is about to step. Are there gradients without a backward pass,
        which the loop has set? Raises GpqTrainError if a part of the batch has none."""
        self._gradients.check()
        if self._gradients.passes:
            return
        if any(item.grad is not None for item in self._gradients.parameters()):
            self._steps.alone("hand-gradient")

    def _finish_step(self, optimizer: Any, *, applied: bool) -> None:
        is_first, self.stepped = not self.stepped, True
        self._stepper_ids.add(id(optimizer))
        if is_first:
            self._steps.stepped(applied)

    def _measure_rates(self) -> List[Any]:
        """Of all groups. A tensor on the CPU may change without a new version. Elsewhere reading it
        would wait for the device."""
        rates = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                rate = group.get("lr")
                if isinstance(rate, torch.Tensor):
                    on_host = rate.device.type == "cpu"
                    rate = (id(rate), version_of(rate), rate.tolist() if on_host else None)
                rates.append(rate)
        return rates

    def _check_rates(self) -> List[Any]:
        """Has the script changed a learning rate since they were noted? That of a newer group does
        not count. Returns the rates of all groups."""
        rates = self._measure_rates()
        if rates[: len(self._rates)] != self._rates:
            in_pieces = self.micro is not None and self.micro.place > 0
            if in_pieces or not self._asked_step:
                self._rate_set()
            self._rates = rates
        return rates


def wrap_scheduler(scheduler: Any, clock: ScheduleClock, loop: "TrainingLoop") -> None:
    """In the loop, step() runs as often as `clock` says after a real step, and never before the
    last micro-batch. Outside the loop it runs unchanged, but a resumed epoch does not repeat the
    step at its start. ReduceLROnPlateau gets rank 0's metric. The class is replaced, not the
    method, because a scheduler's state_dict holds every attribute of the instance."""
    plain = type(scheduler)
    gate = loop.gate
    takes_metric = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        micro = gate.micro
        placed = bool(args or kwargs) and not takes_metric  # step(epoch + index / len(loader))
        gate.note_schedule(placed)
        has_effect = micro.last if micro is not None else not gate.resumes_epoch
        if not has_effect:
            return
        if "metrics" in kwargs:
            args = (kwargs.pop("metrics"), *args)
        if takes_metric and args:
            args = (loop.shared_metric(args[0]), *args[1:])
        if placed or (micro is None and not clock.is_between):
            plain.step(self, *args, **kwargs)
        else:
            if not gate.stepped:  # called before the optimizer's step, so it counts the coming one
                clock.expect(loop.gain())
            # The number of steps in a run depends on its batches. OneCycleLR raises beyond the
            # number that it was made for.
            end = getattr(self, "total_steps", None)
            for _ in range(clock.due()):
                if end is None or self.last_epoch < end:
                    plain.step(self, *args, **kwargs)
        if not (placed and clock.is_between):  # that follows a count of the script
            gate.note_rates()

    members = {"step": step, "__module__": plain.__module__}
    scheduler.__class__ = type(plain.__name__, (plain,), members)


def wrap_scaler(scaler: Any, gate: StepGate) -> None:
    """Its step, unscale_ and update do nothing until the last micro-batch of a step. They are
    replaced on this instance. Outside a loop over the loader, and for optimizers of others, `step`
    acts as in plain PyTorch."""
    step = scaler.step

    def in_last(method: Any) -> Any:
        @functools.wraps(method)
        def gated_call(*args: Any, **kwargs: Any) -> None:
            if gate.last:
                method(*args, **kwargs)

        return gated_call

    @functools.wraps(step)
    def gated_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        micro = gate.micro
        if micro is None or not gate.owns(optimizer):
            return step(optimizer, *args, **kwargs)
        gate.check_gradients()
        if not micro.last:
            gate.hold(optimizer)
            return None
        result = step(optimizer, *args, **kwargs)
        gate.end_scaler_step(optimizer)
        return result

    others = {name: in_last(getattr(scaler, name)) for name in ("unscale_", "update")}
    scaler.__dict__.update(others, step=gated_step)


def inner_optimizers(optimizer: Any) -> List[Any]:
    """The inner optimizers of this optimizer, at any depth. They have no other parameters. Looks at
    the attributes of `optimizer`, and into lists and tuples among them."""
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


def _parameter_ids(optimizer: Any) -> Set[int]:
    return {id(item) for group in optimizer.param_groups for item in group["params"]}
