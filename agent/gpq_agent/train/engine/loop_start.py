"""Finds out how a loop over the loader starts: to train, or to look at the data."""

from typing import Optional

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.events import LoopBegin, StepOutside
from gpq_agent.train.habits.observers import Observers


class LoopStart:
    """A loop counts as a look until its first batch is done. `in_epochs`: part of `job.epochs()`,
    whose last epoch is `epoch`."""

    def __init__(self, observers: Observers) -> None:
        self.in_epochs = False
        self.epoch = 0
        self._observers = observers
        self._opening: Optional[LoopBegin] = None
        self._is_looked_at = (
            False  # the script dropped the first batch of a loop, and nothing since
        )
        self._is_used = False  # and trained on it

    def begin(self, *, by_next: bool, in_batch: bool) -> Optional[int]:
        """Returns the epoch of `job.epochs()`, or None if this loop is not part of it. Raises
        GpqTrainError inside the body of another such loop."""
        if in_batch:
            raise GpqTrainError(
                "a loop over the loader started while another one is still in a batch",
                "use one loop at a time. To look at the data, call next(iter(loader)) and do "
                "not keep the iterator",
            )
        self._opening = LoopBegin(by_next, self.epoch if self.in_epochs else None)
        return self._opening.epoch

    def train(self) -> None:
        """It is not a look."""
        opening, self._opening = self._opening, None
        if opening is not None:
            self._observers.loop_trains(opening)

    def look(self) -> None:
        """Its first batch was dropped, so it was a look."""
        self._is_looked_at = True

    def step_outside(self) -> None:
        """An optimizer steps outside the loop."""
        after_look = self._is_looked_at  # with the batch of an iterator that is gone
        if after_look:
            self._is_looked_at, self._is_used = False, True
            self.train()
        self._observers.step_outside(StepOutside(self.in_epochs, after_look))

    def take_look(self) -> bool:
        """Another loop starts. Did the script train on what it seemed to look at?"""
        is_used, self._is_used, self._is_looked_at = self._is_used, False, False
        return is_used
