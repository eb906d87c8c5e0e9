"""Gradients are changed or cleared between two backward passes of a step."""

from gpq_agent.train.events import BatchEnd, StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class TwoPasses(Observer):
    """Seen in micro-batches that only accumulate, where changes of the script have no effect."""

    codes = ("two-passes",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("two-passes")] if event.repeated and not event.last else ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        return [Habit("two-passes")] if event.gradients.changed_between else ()
