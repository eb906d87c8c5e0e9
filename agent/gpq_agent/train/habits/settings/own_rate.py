"""The loop sets a learning rate by its own count."""

from gpq_agent.train.events import BatchEnd, SchedulerCall, SettingsChange
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.state.forgotten_scheduler import without_scheduler
from gpq_agent.train.habits.table import Habit


class OwnRate(Observer):
    """A rate changes, or a scheduler is called only in some passes, and the loop has not asked
    `job.step`. If the optimizer has a scheduler that the job was not given, that is the habit."""

    codes = ("own-rate", "forgotten-scheduler")

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._missed = False  # a micro-batch ended without a call of a scheduler

    def settings_changed(self, event: SettingsChange) -> Habits:
        return self._notice() if event.in_pieces or not event.asked_step else ()

    def scheduler_called(self, event: SchedulerCall) -> Habits:
        return self._notice() if not event.asked_step else ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        """A scheduler that is called only in some passes of the loop is called by a count of
        them."""
        facts = event.optimizers
        if facts.asked_sync or facts.asked_step:
            return ()
        if facts.scheduled:
            return self._notice() if self._missed else ()
        # In many loops, a step that a GradScaler skips does not count for a schedule either.
        if not facts.skipped and not event.left_early:
            self._missed = True
        return ()

    def _notice(self) -> Habits:
        if not self.job.in_batch() or any(map(self.job.noticed, self.codes)):
            return ()
        optimizer = without_scheduler(self.job)
        return [Habit("forgotten-scheduler", optimizer) if optimizer else Habit("own-rate")]
