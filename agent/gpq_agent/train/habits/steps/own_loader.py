"""The script trains on batches that are not from `job.loader()`."""

from gpq_agent.train.events import StepOutside
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OwnLoader(Observer):
    """An optimizer steps in an epoch of `job.epochs()`, and outside the loop over the loader."""

    codes = ("own-loader",)

    def step_outside(self, event: StepOutside) -> Habits:
        return [Habit("own-loader")] if event.in_epochs else ()
