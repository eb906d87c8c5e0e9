"""Decides how often a scheduler's step() runs when a step of the job is worth several at the base
batch size."""

from typing import Any, Protocol, Sequence

import torch

from .step_gate import StepGate

ROUNDING = 1e-9  # in steps: a sum of gains that misses a whole number by this little has reached it


class ScheduleClock:
    """Turns gains into whole scheduler steps.

    After steps with gains g1..gk since the last call of the scheduler, mean(g) steps are due. With
    one call per optimizer step that is the gain itself. The fraction is carried over. Gains are in
    steps at the base batch size.
    """

    def __init__(self) -> None:
        self._gain = 0.0  # sum since the last call
        self._steps = 0  # since the last call
        self._remainder = 0.0  # due, but not yet a whole step
        self._is_ahead = False  # the coming step is already counted

    def stepped(self, gain: float) -> None:
        """The optimizer stepped, or a GradScaler skipped the step. Schedules count both, as in
        plain PyTorch."""
        if self._is_ahead:
            self._is_ahead = False
            return
        self._gain += gain
        self._steps += 1

    def expect(self, gain: float) -> None:
        """The scheduler was called before the step that it counts."""
        self._is_ahead = False
        self.stepped(gain)
        self._is_ahead = True

    def due(self) -> int:
        """The scheduler steps to run now. Later calls do not return them again."""
        if self._steps:
            self._remainder += self._gain / self._steps
        self._gain, self._steps = 0.0, 0
        steps = int(self._remainder + ROUNDING)
        self._remainder -= steps
        return steps

    def state_dict(self) -> Sequence[float]:
        return (self._gain, float(self._steps), self._remainder)

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._gain, self._steps, self._remainder = float(state[0]), int(state[1]), float(state[2])


class Loop(Protocol):
    """What a scheduler asks the training loop."""

    def gain(self) -> float:
        """What the current step is worth, in steps at the base batch size."""

    def shared_metric(self, metric: Any) -> Any:
        """Rank 0's metric, on every replica. Collective."""


def wrap_scheduler(scheduler: Any, clock: ScheduleClock, loop: Loop, gate: StepGate) -> None:
    """In the loop, step() runs as often as `clock` says after a real step, and never before the
    last micro-batch. Outside the loop it runs unchanged, but a resumed epoch does not repeat the
    step at its start. ReduceLROnPlateau gets rank 0's metric.

    The class is replaced, not the method, because a scheduler's state_dict holds every attribute
    of the instance.
    """
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
