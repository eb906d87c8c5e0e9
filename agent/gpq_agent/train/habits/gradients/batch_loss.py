"""A loss holds the examples of a batch against each other, or bends their sum."""

import torch

from gpq_agent.train import internals
from gpq_agent.train.events import BackwardBegin, BatchBegin
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit

from .example_mixing import mixes_examples
from .looks import Looks


class BatchLoss(Observer):
    """Read off the graphs of the first losses. Suspected: the graph may hold what changes
    nothing."""

    codes = ("batch-loss",)

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._looks = Looks()
        self._examples = 0
        self._mixes = False

    def batch_begins(self, event: BatchBegin) -> Habits:
        if event.trial:
            self._looks.expect()
        return ()

    def backward_begins(self, event: BackwardBegin) -> bool:
        self._examples = event.examples
        if not event.examples or not self._looks.due(event.examples):
            self._examples = 0
            return False
        with internals.without_dispatch():  # numbers that a graph keeps are no tensors to a mode
            losses = [root for root in event.roots if isinstance(root, torch.Tensor)]
            self._mixes = any(mixes_examples(loss, event.examples) for loss in losses)
        return True

    def backward_reaches(self) -> Habits:
        if not self._examples:
            return ()
        self._looks.count(self._examples)
        return [Habit("batch-loss")] if self._mixes else ()
