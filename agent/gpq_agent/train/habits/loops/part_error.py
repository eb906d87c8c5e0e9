"""The loop fails on a micro-batch."""

import torch.distributed as dist

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.events import BatchEnd, Failure
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit

# Errors that no micro-batch causes: files and networks, memory, a missing module.
OUTSIDE = (OSError, EOFError, MemoryError, ImportError, dist.DistError)
# The end of another replica, which gloo reports as RuntimeError.
LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout")


class PartError(Observer):
    """The first step in micro-batches fails: the loop probably cannot handle part of a batch."""

    codes = ("part-error",)
    _cut = False  # a step in micro-batches was completed

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
    """May this error come from a cut batch? Not if it is from outside the loop, or from another
    replica's end."""
    if not isinstance(error, Exception) or isinstance(error, (GpqTrainError, *OUTSIDE)):
        return False
    text = str(error).lower()
    return not (isinstance(error, RuntimeError) and any(words in text for words in LOST))
