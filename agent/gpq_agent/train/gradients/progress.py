"""Counts progress: optimizer steps, steps at the base batch size, and clocks for schedulers."""

from typing import Any, Dict, List, Sequence

from gpq_agent import wire

ROUNDING = 1e-9  # in steps: a sum of gains that misses a whole number by this little has reached it


class ScheduleClock:
    """How often a scheduler's step() runs: turns gains into whole scheduler steps. After steps with
    gains g1..gk since the last call of the scheduler, mean(g) steps are due. With one call per
    optimizer step that is the gain itself. The fraction is carried over. Gains are in steps at the
    base batch size. is_between: a call between two bodies is for a step, not for an epoch."""

    def __init__(self) -> None:
        self.is_between = False
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


class ProgressMeter:
    """The same on every replica.

    steps: the number of optimizer steps.
    base_steps: the sum of their gains, which is the scale-invariant progress of AdaScale (Johnson
    et al. 2020), in steps at the base batch size.
    epochs: as declared by job.epochs(), else 0. epoch: of them, the running one.
    position, samples: base steps and examples of the running epoch so far. Position counts what a
    GradScaler skipped, as schedules do, and starts with what the epoch before had too many.
    passes: an epoch ends with the pass over the data. Otherwise it ends with its base steps.
    schedules: one clock per scheduler.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.base_steps = 0.0
        self.epochs = self.epoch = 0
        self.position, self.samples = 0.0, 0
        self.passes = True
        self.schedules: List[ScheduleClock] = []

    def stepped(self, gain: float, *, applied: bool) -> None:
        """A step of the optimizer. A short one at the end of an epoch counts as one, as in plain
        PyTorch. `applied`: its gradients were finite. Schedules count it anyway."""
        self.steps += 1
        if applied:
            self.base_steps += gain
        for schedule in self.schedules:
            schedule.stepped(gain)

    def end_epoch(self, excess: float) -> None:
        """The running epoch is over. `excess`: the base steps that it had too many."""
        self.epoch += 1
        self.position, self.samples = excess, 0

    def at(self, size: int, base_steps: int) -> wire.Progress:
        """What the job reports. `size` and `base_steps`: of a pass over the data."""
        part = self.samples / size if self.passes else max(self.position, 0.0) / base_steps
        fraction = min((self.epoch + part) / self.epochs, 1.0) if self.epochs else 0.0
        total, fraction = round(self.base_steps, 3), round(fraction, 6)
        return wire.Progress(self.epoch, self.epochs, self.samples, self.steps, total, fraction)

    def state_dict(self) -> Dict[str, Any]:
        schedules = [list(schedule.state_dict()) for schedule in self.schedules]
        return {
            "steps": self.steps,
            "base_steps": self.base_steps,
            "place": (self.epoch, self.position, self.samples),
            "schedules": schedules,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.steps = int(state["steps"])
        self.base_steps = float(state["base_steps"])
        # Checkpoints of earlier versions have no place: see Resumption.
        self.epoch, self.position, self.samples = state.get("place", (-1, 0.0, 0))
        for schedule, clock_state in zip(self.schedules, state["schedules"]):
            schedule.load_state_dict(clock_state)
