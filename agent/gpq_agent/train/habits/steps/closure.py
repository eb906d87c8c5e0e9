"""`optimizer.step()` is given a closure."""

from gpq_agent.train.events import StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class Closure(Observer):
    """A closure computes gradients by itself, of the examples in hand, as often as it is called."""

    codes = ("closure",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("closure")] if event.closure else ()
