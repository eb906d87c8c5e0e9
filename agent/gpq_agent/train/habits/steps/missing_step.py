"""A micro-batch ends without a step: the loop changes weights, accumulates itself or skips it."""

from typing import List, Optional

from gpq_agent.train.events import BatchBegin, BatchEnd, FirstPartEnd
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import foreach_norm

WATCHED_STEPS = 3  # steps of an attempt in which a change of weights is looked for


class MissingStep(Observer):
    """Tells them apart: did parameters change anyway, and was there a backward pass? Waits for the
    device in the first steps, later only if a step is missing."""

    codes = ("hand-step", "hand-accumulation", "skipped-batch")

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._norms: Optional[List[float]] = None  # at the start of a step

    def batch_begins(self, event: BatchBegin) -> Habits:
        if event.place == 0:
            watched = event.step < WATCHED_STEPS
            self._norms = self._measured() if watched else None
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        facts = event.optimizers
        if facts.stepped or event.left_early or (facts.asked_sync and not event.last):
            return ()
        changed = self._norms is not None and self._norms != self._measured()
        if changed or self.job.noticed("hand-step"):
            return [Habit("hand-step")]
        return [Habit("hand-accumulation" if facts.has_gradients else "skipped-batch")]

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        return [Habit("hand-step")] if event.parameters else ()

    def _measured(self) -> List[float]:
        dense = [item.detach() for item in self.job.parameters() if not item.is_sparse]
        return [float(norm) for norm in foreach_norm(dense)] if dense else []
