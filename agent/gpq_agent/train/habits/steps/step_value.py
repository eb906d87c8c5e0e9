"""The loop calls `optimizer.step()` with a value, such as the loss."""

from gpq_agent.train.events import StepCall
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class StepValue(Observer):
    """The value covers only the last part of the batch if a step has several."""

    codes = ("step-value",)

    def step_called(self, event: StepCall) -> Habits:
        return [Habit("step-value")] if event.value else ()
