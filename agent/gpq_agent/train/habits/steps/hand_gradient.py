"""The loop sets gradients itself."""

from gpq_agent.train.events import StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class HandGradient(Observer):
    """A step uses gradients that no backward pass left."""

    codes = ("hand-gradient",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("hand-gradient")] if event.without_backward else ()
