"""Gradients are set by hand."""

from gpq_agent.train.events import StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class HandGradient(Observer):
    """A step is made of gradients that no backward pass has left."""

    codes = ("hand-gradient",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("hand-gradient")] if event.without_backward else ()
