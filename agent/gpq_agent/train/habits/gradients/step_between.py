"""An optimizer steps between two backward passes of a body."""

from gpq_agent.train.events import BackwardBegin
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class StepBetween(Observer):
    """The second pass computes gradients at other weights than the first."""

    codes = ("step-between",)
    _stepped = False

    def backward_begins(self, event: BackwardBegin) -> bool:
        self._stepped = event.stepped
        return event.stepped

    def backward_reaches(self) -> Habits:
        return [Habit("step-between")] if self._stepped else ()
