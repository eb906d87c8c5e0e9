"""An optimizer has a scheduler that the job was not given, so a restart resets it."""

import torch

from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import has_scheduler


class ForgottenScheduler(Observer):
    """Every scheduler of torch leaves a mark on its optimizer. A second one leaves no second mark,
    so an optimizer with one given scheduler counts as complete."""

    codes = ("forgotten-scheduler",)

    def training_begins(self) -> Habits:
        return self.boundary()

    def boundary(self) -> Habits:
        optimizer = without_scheduler(self.job)
        return [Habit("forgotten-scheduler", optimizer)] if optimizer else ()


def without_scheduler(job: JobView) -> str:
    """The class of an optimizer that has a scheduler although the job was given none of it, or
    ""."""
    of_torch = torch.optim.lr_scheduler.LRScheduler
    given = [*job.schedulers, *(part for part in job.parts if isinstance(part, of_torch))]
    owners = [getattr(item, "optimizer", None) for item in given]
    if any(owner is None for owner in owners):
        return ""  # a scheduler of another kind may belong to any optimizer
    for optimizer in job.optimizers:
        if has_scheduler(optimizer) and not any(optimizer is owner for owner in owners):
            return type(optimizer).__name__
    return ""
