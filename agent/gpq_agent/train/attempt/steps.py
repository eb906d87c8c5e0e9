"""The steps of this attempt: how many, how long, and whether the loop is in the midst of one."""

import time

OFTEN_STEPS = 100  # of an attempt, which are all watched
SELDOM_STEPS = 10  # later one of so many is
MOST_PENDING = 64  # steps of the loader that a loop may make one of, before nobody waits for it


class StepRecord:
    """`count`: steps of the loader in this attempt. `seconds`: what one takes, smoothed.
    `is_watched`: observers hear of the step in hand whatever happens in it."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.is_watched = True
        self.changed = False  # the newest step has changed weights
        self._pending = 0  # steps of the loader since the last real step
        self._begin = 0.0

    @property
    def in_midst(self) -> bool:
        """Is this replica in the midst of a step that the loop makes of several of the loader's? A
        checkpoint would lose what it has accumulated. Replicas may differ, where one leaves a step
        out: rank 0's answer counts."""
        return 0 < self._pending < MOST_PENDING

    def begin(self) -> None:
        self._begin = time.perf_counter()

    def end(self, *, real: bool) -> None:
        """`real`: weights were changed in it, by an optimizer or by hand."""
        self.count += 1
        self.is_watched = self.count <= OFTEN_STEPS or self.count % SELDOM_STEPS == 0
        self._pending = 0 if real else self._pending + 1
        seconds = time.perf_counter() - self._begin
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)

    def take_change(self) -> bool:
        """Has the newest step changed weights? True once a step."""
        change, self.changed = self.changed, False
        return change
