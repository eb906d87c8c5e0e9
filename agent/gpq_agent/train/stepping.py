"""Makes optimizer, schedulers and GradScaler act once per optimiser step, with the step's learning rate.

Micro-batches that only accumulate pass through without effect. Schedulers and checkpoints only ever see the base rate.
Outside a loop over the loader, and for a second call in one batch, everything acts as in plain PyTorch.
"""

import functools
from typing import Any, Callable, List, Optional, Sequence

import torch

from .sampler import Issued


class StepGate:
    """Wraps the objects of one job in place. The session tells it of every micro-batch with `enter` and `leave`.

    `backward_done(last)` is called once per micro-batch, after its backward and before anything is done with the
    gradients; `factor()` gives the learning-rate factor of the step in hand; `stepped(applied)` follows a real step,
    with False when a GradScaler skipped it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        backward_done: Callable[[bool], None],
        factor: Callable[[], float],
        stepped: Callable[[bool], None],
    ) -> None:
        self._optimizer = optimizer
        self._backward_done = backward_done
        self._factor = factor
        self._stepped = stepped
        self._micro: Optional[Issued] = None
        self._finished = False  # the backward of this micro-batch is accounted for
        self._acted = False  # step() was called in this micro-batch
        self._may_clear = True
        self._partial = False  # the gradients are those of a step that was left half accumulated
        self._saved_rates: List[Any] = []
        self._wrap_optimizer()

    @property
    def acted(self) -> bool:
        return self._acted

    @property
    def last(self) -> bool:
        """Is the coming optimizer.step() a real one?"""
        return self._micro is None or self._micro.last

    def enter(self, micro: Issued) -> None:
        self._micro = micro
        self._finished = self._acted = False
        self._may_clear = micro.place == 0
        if self._partial and micro.place == 0:
            self._optimizer.zero_grad()
            self._partial = False

    def leave(self, *, abandoned: bool) -> None:
        """The body of the loop is over for this micro-batch; `abandoned`: by a break or an error.

        A step that was left half accumulated never happens: its gradients may not go into the next one.
        """
        self._partial = abandoned and self._micro is not None and not self._micro.last
        self._micro = None

    def finish_backward(self) -> None:
        """Account for the backward of this micro-batch, once: gradients are then those of the step so far."""
        if self._micro is None or self._finished:
            return
        self._finished = True
        self._backward_done(self._micro.last)

    def wrap_scaler(self, scaler: Any) -> None:
        """A GradScaler's step, unscale_ and update wait for the last micro-batch as well."""
        step, unscale, update = scaler.step, scaler.unscale_, scaler.update

        @functools.wraps(step)
        def gated_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if optimizer is not self._optimizer or self._micro is None:
                return step(optimizer, *args, **kwargs)
            self.finish_backward()
            if not self._micro.last:
                self._hold()
                return None
            result = step(optimizer, *args, **kwargs)
            if not self._acted:  # infinite gradients: the scaler left the optimizer alone
                self._acted = self._may_clear = True
                self._stepped(False)
            return result

        @functools.wraps(unscale)
        def gated_unscale(optimizer: Any) -> None:
            self.finish_backward()
            if self.last:
                unscale(optimizer)

        @functools.wraps(update)
        def gated_update(*args: Any, **kwargs: Any) -> None:
            if self.last:
                update(*args, **kwargs)

        scaler.__dict__.update(step=gated_step, unscale_=gated_unscale, update=gated_update)

    def wrap_scheduler(self, scheduler: Any, due: Callable[[], int]) -> None:
        """In the loop, step() runs `due()` times after a real optimiser step; outside it runs as it is.

        The class is replaced, not the method: a scheduler's state_dict holds every attribute of the instance.
        """
        plain = type(scheduler)
        gate = self

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            if gate._micro is None:
                plain.step(self, *args, **kwargs)
            elif gate._micro.last and gate._acted:
                # How many steps a run has depends on its batches; OneCycleLR raises at the first too many.
                end = getattr(self, "total_steps", None)
                for _ in range(due()):
                    if end is None or self.last_epoch < end:
                        plain.step(self, *args, **kwargs)

        scheduler.__class__ = type(plain.__name__, (plain,), {"step": step, "__module__": plain.__module__})

    def _wrap_optimizer(self) -> None:
        optimizer = self._optimizer
        step, zero_grad = optimizer.step, optimizer.zero_grad
        optimizer.register_step_pre_hook(self._raise_rates)
        optimizer.register_step_post_hook(self._restore_rates)

        @functools.wraps(step)
        def gated_step(*args: Any, **kwargs: Any) -> Any:
            if self._micro is None or self._acted:
                return step(*args, **kwargs)
            self.finish_backward()
            if not self._micro.last:
                self._hold()
                return None
            try:
                result = step(*args, **kwargs)
            finally:
                self._restore_rates()
            self._acted = self._may_clear = True
            self._stepped(True)
            return result

        @functools.wraps(zero_grad)
        def gated_zero_grad(*args: Any, **kwargs: Any) -> None:
            if self._micro is None or self._may_clear:
                zero_grad(*args, **kwargs)

        # On the instance, as torch's own schedulers do; the class and other optimizers stay untouched.
        optimizer.__dict__.update(step=gated_step, zero_grad=gated_zero_grad)

    def _hold(self) -> None:
        self._acted = True
        self._may_clear = False

    def _raise_rates(self, *_: Any) -> None:
        if self._micro is None or self._acted:
            return
        factor = self._factor()
        self._saved_rates = [group["lr"] for group in self._optimizer.param_groups]
        if factor != 1.0:
            for group in self._optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def _restore_rates(self, *_: Any) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._saved_rates):
            group["lr"] = rate
        self._saved_rates = []


class ScheduleClock:
    """Turns gains into whole scheduler steps: after steps of gain g1..gk since its last call, mean(g) steps are due.

    With one call per optimiser step that is the gain itself; the fraction is carried over.
    """

    def __init__(self) -> None:
        self._gain = 0.0
        self._steps = 0
        self._owed = 0.0

    def stepped(self, gain: float) -> None:
        self._gain += gain
        self._steps += 1

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
