"""The steps of this attempt: how many, how long, and whether the loop is in the middle of one."""

import time

OFTEN_STEPS = 100  # of an attempt, which are all watched
SELDOM_STEPS = 10  # later one of so many is
MOST_PENDING = 64  # steps of the loader that a loop may make one of, before nobody waits for it


class StepRecord:
    """Steps of the attempt.

    count: steps of the loader in this attempt.
    seconds: the smoothed time of one step.
    is_watched: observers hear of the current step whatever happens in it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.is_watched = True
        self._pending = 0  # steps of the loader since the last real step
        self._begin = 0.0

    @property
    def in_midst(self) -> bool:
        """Is this replica in the middle of a step that the loop makes from several steps of the
        loader? A checkpoint would lose what it has accumulated. Replicas may differ if one skips a
        step, so rank 0 decides."""
        return 0 < self._pending < MOST_PENDING

    def begin(self) -> None:
        self._begin = time.perf_counter()

    def end(self, *, real: bool) -> None:
        """`real`: an optimizer or the script itself changed weights in it."""
        self.count += 1
        self.is_watched = self.count <= OFTEN_STEPS or self.count % SELDOM_STEPS == 0
        self._pending = 0 if real else self._pending + 1
        seconds = time.perf_counter() - self._begin
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)
