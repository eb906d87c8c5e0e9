"""The loop leaves the loader before its end."""

from gpq_agent.train.events import BatchEnd, StepOutside
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OwnBreak(Observer):
    """By a count of its own, where it has not asked `job.step`. A batch of an iterator that is gone
    was such a loop, if an optimizer steps by it."""

    codes = ("own-break",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        own = event.left_early and not event.optimizers.asked_step
        return [Habit("own-break")] if own else ()

    def step_outside(self, event: StepOutside) -> Habits:
        return [Habit("own-break")] if event.after_look else ()
