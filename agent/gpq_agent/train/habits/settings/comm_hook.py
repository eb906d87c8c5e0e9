"""The model has a communication hook of its own."""

from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class CommHook(Observer):
    """DistributedDataParallel accepts only one hook, so the library cannot add its own."""

    codes = ("comm-hook",)

    def attempt_begins(self) -> Habits:
        return [Habit("comm-hook")] if self.job.own_comm_hook else ()
