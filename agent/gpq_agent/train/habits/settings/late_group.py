"""An optimizer gets other or more parameters during training."""

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class LateGroup(Observer):
    """It has more groups than at the start, or parameters were replaced by others."""

    codes = ("late-group",)

    def batch_ends(self, event: BatchEnd) -> Habits:
        late = event.optimizers.groups_added or event.gradients.replaced
        return [Habit("late-group")] if late else ()
