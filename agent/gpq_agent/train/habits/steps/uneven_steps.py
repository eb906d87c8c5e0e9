"""An optimizer steps only in some passes of the loop."""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class UnevenSteps(Observer):
    """Some optimizers made no step where others did. A loop that asked `job.at_step` in a
    micro-batch that only accumulates may skip steps."""

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
