"""A micro-batch ends without a step: the loop changes weights or accumulates itself."""

from typing import Optional

from gpq_agent.train.events import BatchBegin, BatchEnd, FirstPartEnd
from gpq_agent.train.habits.norms import Norms
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit

WATCHED_STEPS = 3  # steps of an attempt in which a change of weights is looked for


class MissingStep(Observer):
    """Tells the two apart: did parameters change anyway? Waits for the device in the first steps,
    later only if a step is missing."""

    codes = ("hand-step", "hand-accumulation")

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._norms: Optional[Norms] = None  # at the start of a step

    def batch_begins(self, event: BatchBegin) -> Habits:
        if event.place == 0:
            watched = event.step < WATCHED_STEPS
            self._norms = Norms(self.job.parameters()) if watched else None
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        facts = event.optimizers
        if facts.stepped or event.left_early or (facts.asked_sync and not event.last):
            return ()
        if self.job.noticed("hand-step") or (self._norms is not None and self._norms.differ()):
            return [Habit("hand-step")]
        return [Habit("hand-accumulation")]

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        return [Habit("hand-step")] if event.parameters else ()
