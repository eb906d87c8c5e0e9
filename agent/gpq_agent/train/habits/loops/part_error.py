"""The loop fails in a part of a batch."""

import torch.distributed as dist

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.events import BatchEnd, Failure
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit

# What no part of a batch causes: files and networks, memory, a module that is not there.
OUTSIDE = (OSError, EOFError, MemoryError, ImportError, dist.DistError)
# Another replica's end, as gloo tells it, by RuntimeError.
LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout")


class PartError(Observer):
    """In the first step in pieces: it is likely that the loop cannot do with a part of a batch."""

    codes = ("part-error",)
    _cut = False  # a step in pieces was made to its end

    def batch_ends(self, event: BatchEnd) -> Habits:
        if event.last and event.place > 0:
            self._cut = True
        return ()

    def failed(self, event: Failure) -> Habits:
        if self._cut or event.micro_batches == 1 or not may_be_of_a_part(event.error):
            return ()
        name = type(event.error).__name__
        detail = "{} with {} of {} examples".format(name, event.examples, event.total)
        return [Habit("part-error", detail)]


def may_be_of_a_part(error: BaseException) -> bool:
    """May this come of a batch that was cut? Not what lies outside the loop, nor a replica's
    end."""
    if not isinstance(error, Exception) or isinstance(error, (GpqTrainError, *OUTSIDE)):
        return False
    text = str(error).lower()
    return not (isinstance(error, RuntimeError) and any(words in text for words in LOST))
