"""An optimizer steps that `job.prepare()` was not given."""

import weakref
from typing import Any, List

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpq_agent.train.events import BatchEnd
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.optim.inner_optimizers import inner_optimizers


class OtherOptimizer(Observer):
    """torch reports every step in the process. Inner optimizers of the job's own ones belong to
    them."""

    codes = ("other-optimizer",)

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self.names: List[str] = []  # class names, in the current micro-batch
        own = {
            id(part)
            for optimizer in job.optimizers
            for part in (optimizer, *inner_optimizers(optimizer))
        }
        reference = weakref.ref(self)

        def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
            observer = reference()
            if observer is not None and id(optimizer) not in own and observer.job.in_batch():
                observer.names.append(type(optimizer).__name__)
                observer.job.attend()

        handle = register_optimizer_step_pre_hook(stepping)
        self._remove = weakref.finalize(self, handle.remove)

    def batch_ends(self, event: BatchEnd) -> Habits:
        if not self.names:
            return ()
        names, self.names = self.names, []
        return [Habit("other-optimizer", names[0])]

    def close(self) -> None:
        self._remove()
