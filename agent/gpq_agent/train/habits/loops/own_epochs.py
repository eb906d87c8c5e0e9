"""The loop over the loader is outside `job.epochs()`."""

from gpq_agent.train.events import LoopBegin
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OwnEpochs(Observer):
    """Such a loop counts epochs itself, from 0 after a restart."""

    codes = ("own-epochs",)

    def loop_trains(self, event: LoopBegin) -> Habits:
        return [Habit("own-epochs")] if event.epoch is None else ()
