"""Makes optimizers, schedulers and GradScaler act once per optimiser step, with the step's learning rate.

Micro-batches that only accumulate pass through without effect. Schedulers and checkpoints only ever see the base rate.
Outside a loop over the loader everything acts as in plain PyTorch.
"""

import functools
import types
from typing import Any, Callable, List, Optional, Protocol, Sequence, Set, Tuple

import torch

from . import bulk
from .events import OptimizerFacts, SchedulerCall, SettingsChange, StepCall
from .gradients import Gradients
from .param_groups import ParamGroups
from .sampler import Issued
from .scaling import UNCHANGED, Adjustment, adjusted


class Steps(Protocol):
    """What the gate asks of the engine, and tells it."""

    def adjustment(self, optimizer: Any) -> Adjustment:
        """What the step in hand multiplies the rate of this optimizer by, and what it raises its betas to."""

    def stepped(self, applied: bool) -> None:
        """The step in hand was made; `applied` is False where a GradScaler left it out. Once a step."""

    def step_called(self, event: StepCall) -> None:
        """Before an optimizer steps in the loop."""

    def settings_changed(self, event: SettingsChange) -> None:
        """The script has set an optimizer otherwise."""

    def scheduler_called(self, event: SchedulerCall) -> None:
        """In the loop, or outside."""

    def mean_loss(self, loss: Any) -> Any:
        """The mean over replicas of what a closure returned."""

    def outside(self) -> None:
        """An optimizer steps outside the loop over the loader."""


class StepGate:
    """Wraps the objects of one job in place. The engine tells it of every micro-batch with `enter` and `leave`."""

    def __init__(self, optimizers: Sequence[Any], gradients: Gradients, steps: Steps) -> None:
        self.guarded = False  # the script has asked job.at_step since the last micro-batch
        self.counted = False  # the script has asked job.step since the last micro-batch
        self._optimizers = list(optimizers)
        self._gradients = gradients
        self._steps = steps
        self._micro: Optional[Issued] = None
        self._acted: Set[int] = set()  # optimizers whose step() was called in this micro-batch
        self._running = False  # within a real step: an optimizer may be made of others
        self._settings = ParamGroups(self._optimizers)
        self._left_out = False  # a GradScaler made no step of this micro-batch
        self._scheduled = False  # a scheduler was called in this micro-batch
        self._groups = self._count_groups()
        for optimizer in self._optimizers:
            for part in (optimizer, *inner_optimizers(optimizer)):
                self._wrap(part, optimizer)
                self._wrap_clearing(part)

    @property
    def acted(self) -> bool:
        return bool(self._acted)

    @property
    def touched(self) -> bool:
        """Has a step been made, or a schedule advanced, in this micro-batch?"""
        return bool(self._acted) or self._scheduled

    @property
    def stepping(self) -> bool:
        """Does a real step of an optimizer run?"""
        return self._running

    @property
    def last(self) -> bool:
        """Is the coming optimizer.step() a real one?"""
        return self._micro is None or self._micro.last

    def enter(self, micro: Issued) -> None:
        self._micro = micro
        self._acted.clear()
        if micro.place == 0:
            self.note_rates()

    def take_back(self) -> None:
        """The micro-batch was only looked at."""
        self.guarded = self.counted = False
        self._micro = None

    def leave(self) -> OptimizerFacts:
        """The body of the loop is over for this micro-batch. Returns what it has done."""
        self._check_settings()
        facts = OptimizerFacts(
            stepped=bool(self._acted),
            idle=tuple(type(one).__name__ for one in self._optimizers if id(one) not in self._acted),
            asked_step=self.counted,
            asked_sync=self.guarded,
            scheduled=self._scheduled,
            skipped=self._left_out,
            groups_added=self._count_groups() > self._groups,
        )
        self.guarded = self.counted = self._scheduled = self._left_out = False
        self._micro = None
        return facts

    def wrap_scaler(self, scaler: Any) -> None:
        """A GradScaler's step, unscale_ and update wait for the last micro-batch as well."""
        step, unscale, update = scaler.step, scaler.unscale_, scaler.update

        @functools.wraps(step)
        def gated_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._micro is None or not any(optimizer is each for each in self._optimizers):
                return step(optimizer, *args, **kwargs)
            if self._accept_manual():
                self._steps.step_called(StepCall(self._micro.last, without_backward=True))
            if not self._micro.last:
                self._hold(optimizer)
                return None
            result = step(optimizer, *args, **kwargs)
            if id(optimizer) not in self._acted:  # infinite gradients: the scaler left the optimizer alone
                self._left_out = True
                self._done(optimizer, applied=False)
            return result

        @functools.wraps(unscale)
        def gated_unscale(optimizer: Any) -> None:
            if self.last:
                unscale(optimizer)

        @functools.wraps(update)
        def gated_update(*args: Any, **kwargs: Any) -> None:
            if self.last:
                update(*args, **kwargs)

        scaler.__dict__.update(step=gated_step, unscale_=gated_unscale, update=gated_update)

    def wrap_scheduler(self, scheduler: Any, clock: "ScheduleClock", gain: Callable[[], float]) -> None:
        """In the loop, step() runs as often as `clock` says is due after a real step; outside it runs as it is.

        The class is replaced, not the method: a scheduler's state_dict holds every attribute of the instance.
        """
        plain = type(scheduler)
        gate = self
        measures = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            micro = gate._micro
            placed = bool(args or kwargs) and not measures  # step(epoch + index / len(loader))
            gate._scheduled = micro is not None
            gate._steps.scheduler_called(SchedulerCall(micro is not None, placed, gate.counted))
            if micro is None or (placed and micro.last):
                plain.step(self, *args, **kwargs)
            elif micro.last:
                if not gate._acted:  # called before the optimizer's step: for the step to come
                    clock.expect(gain())
                # How many steps a run has depends on its batches; OneCycleLR raises at the first too many.
                end = getattr(self, "total_steps", None)
                for _ in range(clock.due()):
                    if end is None or self.last_epoch < end:
                        plain.step(self, *args, **kwargs)
            if micro is None or micro.last:
                gate.note_rates()

        scheduler.__class__ = type(plain.__name__, (plain,), {"step": step, "__module__": plain.__module__})

    def note_rates(self) -> None:
        """The learning rates, and other settings of the optimizers, are as they should be."""
        self._settings.note()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _wrap(self, part: Any, optimizer: Any) -> None:
        """`part` makes the steps of `optimizer`, or is it."""
        step = part.step
        # Some write down there what they have found; torch's own do not.
        writes_settings = not type(part).__module__.startswith("torch.optim.")

        @functools.wraps(step)
        def gated_step(_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._micro is None:
                if not self._running:
                    self._steps.outside()
                return step(*args, **kwargs)
            if self._running:
                return step(*args, **kwargs)
            if self._micro.last:  # else no step is made, and what stands there at the end of the body counts
                self._check_settings()
            args, kwargs, closure = self._with_closure(args, kwargs)
            values = () if closure is not None else (*args, *kwargs.values())
            event = StepCall(
                last=self._micro.last,
                repeated=id(optimizer) in self._acted,
                closure=closure is not None,
                value=any(isinstance(value, (torch.Tensor, float)) for value in values),
                without_backward=closure is None and self._accept_manual(),
            )
            self._steps.step_called(event)
            if not self._micro.last:
                loss = closure() if closure is not None else None
                self._hold(optimizer)
                return loss
            self._running = True
            try:
                adjustment = self._steps.adjustment(optimizer)
                if adjustment is UNCHANGED:
                    result = step(*args, **kwargs)
                else:
                    with adjusted(optimizer, adjustment):
                        result = step(*args, **kwargs)
            finally:
                self._running = False
            if writes_settings:
                self.note_rates()
            self._done(optimizer, applied=True)
            return result

        # On the instance, as torch's own schedulers do, which want a method; the class and other optimizers stay untouched.
        part.__dict__.update(step=types.MethodType(gated_step, part))

    def _wrap_clearing(self, part: Any) -> None:
        """torch's own zero_grad() does the same more slowly, with a mark for profilers: plain PyTorch would not call it where
        a step only accumulates."""
        if "zero_grad" in vars(part) or type(part).zero_grad is not torch.optim.Optimizer.zero_grad:
            return
        plain = part.zero_grad

        def zero_grad(this: Any, set_to_none: bool = True) -> None:
            if self.last or not set_to_none:
                plain(set_to_none)
                return
            for group in this.param_groups:
                bulk.clear(group["params"])

        part.__dict__.update(zero_grad=types.MethodType(functools.wraps(plain)(zero_grad), part))

    def _with_closure(self, args: Any, kwargs: Any) -> Tuple[Any, Any, Optional[Callable[[], Any]]]:
        """A closure that returns the mean loss over replicas: a line search must go the same way on all of them."""
        plain = args[0] if args else kwargs.get("closure")
        if not callable(plain):
            return args, kwargs, None
        script: Callable[[], Any] = plain

        def closure() -> Any:
            with torch.enable_grad():
                return self._steps.mean_loss(script())

        if args:
            return (closure, *args[1:]), kwargs, closure
        return args, {**kwargs, "closure": closure}, closure

    def _accept_manual(self) -> bool:
        """Gradients that came without a backward pass are those of one. Are there any?"""
        if self._gradients.passes or all(item.grad is None for item in self._gradients.parameters()):
            return False
        self._gradients.adopt()
        return True

    def _hold(self, optimizer: Any) -> None:
        self._acted.add(id(optimizer))
        self._gradients.close(optimizer)

    def _done(self, optimizer: Any, *, applied: bool) -> None:
        first = not self._acted
        self._gradients.used(optimizer)
        self._acted.add(id(optimizer))
        if first:
            self._steps.stepped(applied)

    def _count_groups(self) -> int:
        return sum(len(optimizer.param_groups) for optimizer in self._optimizers)

    def _check_settings(self) -> None:
        if self._settings.changed():
            in_pieces = self._micro is not None and self._micro.place > 0
            self._steps.settings_changed(SettingsChange(in_pieces, asked_step=self.counted))
            self._settings.note()


def inner_optimizers(optimizer: Any) -> List[Any]:
    """Optimizers that this one makes its steps with (SAM, Lookahead and their like): of the same parameters."""
    own = {id(item) for group in optimizer.param_groups for item in group["params"]}
    found: List[Any] = []
    waiting = [optimizer]
    while waiting:
        for value in vars(waiting.pop()).values():
            candidates = value if isinstance(value, (list, tuple)) else [value]
            for each in candidates:
                if not isinstance(each, torch.optim.Optimizer) or each is optimizer or each in found:
                    continue
                if own.issuperset(id(item) for group in each.param_groups for item in group["params"]):
                    found.append(each)
                    waiting.append(each)
    return found


class InnerOptimizer:
    """In checkpoints: the state of an optimizer that another one makes its steps with. Groups that they share stay shared."""

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer, self._inner = outer, inner
        self._shared = outer.param_groups is inner.param_groups

    def state_dict(self) -> Any:
        return self._inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._inner.load_state_dict(state)
        if self._shared:
            self._inner.param_groups = self._outer.param_groups


class ScheduleClock:
    """Turns gains into whole scheduler steps: after steps of gain g1..gk since its last call, mean(g) steps are due.

    With one call per optimiser step that is the gain itself; the fraction is carried over.
    """

    def __init__(self) -> None:
        self._gain = 0.0
        self._steps = 0
        self._owed = 0.0
        self._ahead = False

    def stepped(self, gain: float) -> None:
        """A step was made, also one that a GradScaler left out: a schedule counts those in plain PyTorch too."""
        if self._ahead:
            self._ahead = False
            return
        self._gain += gain
        self._steps += 1

    def expect(self, gain: float) -> None:
        """The scheduler is called before the step that it counts."""
        self._ahead = False
        self.stepped(gain)
        self._ahead = True

    def due(self) -> int:
        if self._steps:
            self._owed += self._gain / self._steps
        self._gain, self._steps = 0.0, 0
        whole = int(self._owed + 1e-9)
        self._owed -= whole
        return whole

    def state_dict(self) -> Sequence[float]:
        return (self._gain, float(self._steps), self._owed)

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._gain, self._steps, self._owed = float(state[0]), int(state[1]), float(state[2])
