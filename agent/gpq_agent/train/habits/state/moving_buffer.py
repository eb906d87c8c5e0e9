"""A buffer of a model changes in every forward pass."""

from gpq_agent.train.events import FirstPartEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit


class MovingBuffer(Observer):
    """Seen when a step in micro-batches is watched: its first part has already moved the buffer."""

    codes = ("moving-buffer",)

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        return [Habit("moving-buffer", event.buffer)] if event.buffer else ()
