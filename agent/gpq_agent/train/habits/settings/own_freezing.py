"""Parameters are frozen and trained in turns."""

from typing import List

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit


class OwnFreezing(Observer):
    """The set of trained parameters changes within an epoch, and the loop has not asked
    `job.step`."""

    codes = ("own-freezing",)

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._epoch = -1
        self._trained: List[bool] = []

    def batch_ends(self, event: BatchEnd) -> Habits:
        epoch, before = self._epoch, self._trained
        trained_flags = [item.requires_grad for item in self.job.parameters()]
        self._epoch, self._trained = event.epoch, trained_flags
        if (
            epoch == event.epoch
            and before != trained_flags[: len(before)]
            and not event.optimizers.asked_step
        ):
            return [Habit("own-freezing")]
        return ()
