"""The loop leaves the loader before its end."""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OwnBreak(Observer):
    """It leaves by its own count if it has not asked `job.step`."""

    codes = ("own-break",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        own = event.left_early and not event.optimizers.asked_step
        return [Habit("own-break")] if own else ()
