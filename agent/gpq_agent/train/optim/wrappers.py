"""Makes schedulers and a GradScaler act once per optimizer step, when its gradients are whole."""

import functools
from typing import Any, Protocol

import torch

from .progress import ScheduleClock
from .step_gate import StepGate


class Loop(Protocol):
    """What a scheduler asks the training loop."""

    def gain(self) -> float:
        """What the current step is worth, in steps at the base batch size."""

    def shared_metric(self, metric: Any) -> Any:
        """Rank 0's metric, on every replica. Collective."""


def wrap_scheduler(scheduler: Any, clock: ScheduleClock, loop: Loop, gate: StepGate) -> None:
    """In the loop, step() runs as often as `clock` says after a real step, and never before the
    last micro-batch. Outside the loop it runs unchanged, but a resumed epoch does not repeat the
    step at its start. ReduceLROnPlateau gets rank 0's metric. The class is replaced, not the
    method, because a scheduler's state_dict holds every attribute of the instance."""
    plain = type(scheduler)
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
        if micro is None or placed:
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
        gate.note_rates()

    members = {"step": step, "__module__": plain.__module__}
    scheduler.__class__ = type(plain.__name__, (plain,), members)


def wrap_scaler(scaler: Any, gate: StepGate) -> None:
    """Its step, unscale_ and update do nothing until the last micro-batch of a step. They are
    replaced on this instance. Outside a loop over the loader, and for optimizers of others, `step`
    acts as in plain PyTorch."""
    step, unscale, update = scaler.step, scaler.unscale_, scaler.update

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

    @functools.wraps(unscale)
    def gated_unscale(optimizer: Any) -> None:
        if gate.last:
            unscale(optimizer)

    @functools.wraps(update)
    def gated_update(*args: Any, **kwargs: Any) -> None:
        if gate.last:
            update(*args, **kwargs)

    scaler.__dict__.update(step=gated_step, unscale_=gated_unscale, update=gated_update)
