"""The loop takes batches with `next()`."""

from gpq_agent.train.events import LoopBegin
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class OwnNext(Observer):
    """A count of such batches counts micro-batches, and starts again after a restart."""

    codes = ("own-next",)

    def loop_trains(self, event: LoopBegin) -> Habits:
        return [Habit("own-next")] if event.by_next else ()
