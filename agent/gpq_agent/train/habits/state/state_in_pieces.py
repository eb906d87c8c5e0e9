"""Something given to `job.state()` changes in every micro-batch."""

from gpq_agent.train.events import FirstPartEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class StateInPieces(Observer):
    """Seen when a step in micro-batches is watched: its first part has already changed it."""

    codes = ("state-in-pieces",)

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        return [Habit("state-in-pieces", ", ".join(event.parts))] if event.parts else ()
