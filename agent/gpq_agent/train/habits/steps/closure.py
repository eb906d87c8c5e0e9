"""The loop calls `optimizer.step()` with a closure."""

from gpq_agent.train.events import StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class Closure(Observer):
    """A closure computes gradients itself, from the current examples, at every call."""

    codes = ("closure",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("closure")] if event.closure else ()
