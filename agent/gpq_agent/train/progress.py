"""How far the job is: steps, progress in steps at the base batch, and what of it schedulers have had."""

from typing import Any, Dict, List

from gpq_agent import wire

from .sampler import Cursor
from .stepping import ScheduleClock


class ProgressMeter:
    """Counts on every replica alike. `base_steps` is the sum of gains: the scale-invariant progress (AdaScale)."""

    def __init__(self) -> None:
        self.steps = 0
        self.base_steps = 0.0
        self.epochs = 0  # declared by job.epochs(); 0 = not known
        self.schedules: List[ScheduleClock] = []

    def stepped(self, gain: float) -> None:
        """A step of the optimizer; a short one at the end of an epoch counts as a step, as in ordinary training."""
        self.steps += 1
        self.base_steps += gain
        for schedule in self.schedules:
            schedule.stepped(gain)

    def skipped(self, gain: float) -> None:
        """A step without effect: its gradients were not finite. Schedules count it all the same, as in plain PyTorch."""
        self.steps += 1
        for schedule in self.schedules:
            schedule.stepped(gain)

    def at(self, cursor: Cursor, size: int) -> wire.Progress:
        """What is reported: `size` examples an epoch."""
        done = cursor.epoch + cursor.consumed / size
        fraction = min(done / self.epochs, 1.0) if self.epochs else 0.0
        return wire.Progress(
            cursor.epoch, self.epochs, cursor.consumed, self.steps, round(self.base_steps, 3), round(fraction, 6)
        )

    def state_dict(self) -> Dict[str, Any]:
        schedules = [list(schedule.state_dict()) for schedule in self.schedules]
        return {"steps": self.steps, "base_steps": self.base_steps, "schedules": schedules}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.steps = int(state["steps"])
        self.base_steps = float(state["base_steps"])
        for schedule, saved in zip(self.schedules, state["schedules"]):
            schedule.load_state_dict(saved)
