"""An optimizer steps in some passes of the loop only."""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class UnevenSteps(Observer):
    """Of several optimizers some have made no step where others have. A loop that has asked
    `job.at_step` in a micro-batch that only accumulates may leave steps out."""

    codes = ("uneven-steps",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        facts = event.optimizers
        if (
            not facts.idle
            or not facts.stepped
            or event.left_early
            or (facts.asked_sync and not event.last)
        ):
            return ()
        return [Habit("uneven-steps", ", ".join(facts.idle))]
