"""A scheduler, a GradScaler or a copy of weights was never given to the job, so a restart resets
it."""

import time

from gpq_agent.train.events import Boundary
from gpq_agent.train.habits.observer import Habits, JobView, Observer

from .search import Search

FIRST_LOOKS = 5  # steps of an attempt that changed weights, after which to look
MIN_PAUSE = (
    1000.0  # pause until the next look at the end of an epoch, in multiples of the last look's time
)


class UnregisteredState(Observer):
    """Looks after the first steps, and rarely at the end of an epoch. Only on the leading replica,
    which has what the others have. Waits for the device."""

    codes = ("forgotten-scheduler", "forgotten-scaler", "forgotten-copy")

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._search = Search(job)
        self._looks = 0
        self._ended = self._seconds = 0.0

    def boundary(self, event: Boundary) -> Habits:
        if not event.changed or not self.job.is_lead or self._looks >= FIRST_LOOKS:
            return ()
        self._looks += 1
        return self._look(early=True)

    def epoch_ends(self) -> Habits:
        if not self.job.is_lead or time.perf_counter() - self._ended <= MIN_PAUSE * self._seconds:
            return ()
        return self._look(early=False)

    def _look(self, *, early: bool) -> Habits:
        begin = time.perf_counter()
        habits = self._search.look(early=early)
        self._ended = time.perf_counter()
        self._seconds = self._ended - begin
        return habits
