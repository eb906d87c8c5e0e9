"""Gradients are not cleared after a step."""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class CarriedGradient(Observer):
    """What a step used goes into the next one too."""

    codes = ("carried-gradient",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        return [Habit("carried-gradient")] if event.gradients.carried else ()
