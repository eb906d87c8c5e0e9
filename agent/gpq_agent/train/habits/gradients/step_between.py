"""An optimizer steps between two backward passes of a body."""

from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class StepBetween(Observer):
    """The second pass computes gradients at other weights than the first."""

    codes = ("step-between",)

    def backward_after_step(self) -> Habits:
        return [Habit("step-between")]
