"""What the script does at the start of an epoch, between `job.epochs()` and the loop over the
loader.

An attempt that resumes in the middle of the epoch does it again.
"""

import time
from typing import Any, Iterator, List, Optional

import torch
from torch.nn.parameter import is_lazy

from gpq_agent.train.events import EpochBegin, LoopBegin, SchedulerCall
from gpq_agent.train.habits.norms import Norms
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.optim.inner_optimizers import inner_optimizers

ALWAYS = 3  # starts of epochs to look at in an attempt, whatever it costs
MIN_PAUSE = 200.0  # pause until the next look, in multiples of the last look's time


class EpochStart(Observer):
    """Notices changes there of weights, optimizer states or schedules, if the script did not ask
    how far the epoch is. Waits for the device."""

    codes = ("epoch-head",)

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._optimizers = [
            part
            for optimizer in job.optimizers
            for part in (optimizer, *inner_optimizers(optimizer))
        ]
        self._weights: Optional[Norms] = None
        self._state: Optional[Norms] = None
        self._is_asked = False
        self._scheduled = False
        self._change = ""
        self._looks = 0
        self._next = 0.0

    def epoch_begins(self, event: EpochBegin) -> Habits:
        self._is_asked = self._scheduled = False
        self._weights = self._state = None
        begin = time.perf_counter()
        if not event.whole or (self._looks >= ALWAYS and begin < self._next):
            return ()
        self._looks += 1
        self._weights, self._state = self._norms_of_weights(), self._norms_of_state()
        now = time.perf_counter()
        self._next = now + MIN_PAUSE * (now - begin)
        return ()

    def place_asked(self) -> Habits:
        self._is_asked = True
        return ()

    def scheduler_called(self, event: SchedulerCall) -> Habits:
        self._scheduled = self._scheduled or not (event.in_loop or event.placed)
        return ()

    def loop_begins(self, event: LoopBegin) -> Habits:
        self._change = self._changed() if event.epoch is not None else ""
        return ()

    def loop_trains(self, event: LoopBegin) -> Habits:
        """Later changes do not belong to the start of the epoch."""
        self._weights = self._state = None
        change, self._change = self._change, ""
        return [Habit("epoch-head", change)] if change else ()

    def _changed(self) -> str:
        """What the start of the epoch did, or ""."""
        weights, state = self._weights, self._state
        if weights is None or state is None or self._is_asked:
            return ""
        if not weights.equal(self._norms_of_weights()):
            return "changes weights"
        if not state.equal(self._norms_of_state()):
            return "changes the state of an optimizer"
        return "steps a schedule" if self._scheduled else ""

    def _norms_of_weights(self) -> Norms:
        tensors: List[torch.Tensor] = []
        for model in self.job.models:
            tensors += [*model.parameters(), *model.buffers()]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                tensors += group["params"]
        return Norms(_measured(tensors))

    def _norms_of_state(self) -> Norms:
        states = [getattr(optimizer, "state", {}) for optimizer in self._optimizers]
        return Norms(_measured([item for state in states for item in _tensors(state)]))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _measured(tensors: List[torch.Tensor]) -> List[Any]:
    """Each once."""
    return list(
        {
            id(item): item for item in tensors if not is_lazy(item) and item.is_floating_point()
        }.values()
    )
