"""A loss is divided by something else than its examples: tokens, a mask, nothing at all."""

import math
from typing import List, Sequence

from gpq_agent.train import internals
from gpq_agent.train.events import BackwardBegin, BatchBegin, Meeting
from gpq_agent.train.habits.observer import Habits, JobView, Observer
from gpq_agent.train.habits.table import Habit

from .looks import Looks
from .loss_divisors import Divisor, differs, divisors_of


class TokenLoss(Observer):
    """Read off the graphs of the first losses: a part of a loss is divided by something else than
    before, by example. What follows a shape may differ between steps, and must not within one, nor
    between replicas."""

    codes = ("token-loss",)
    shares = 1

    def __init__(self, job: JobView) -> None:
        super().__init__(job)
        self._looks = Looks()
        self._examples = 0  # of the backward pass that runs, where its losses were read
        self._divisors: List[Divisor] = []
        self._first: List[
            Divisor
        ] = []  # by example, of the first pass, or the first of as many parts
        self._step = -1
        self._of_step: List[Divisor] = []  # by example, of the first micro-batch of that step
        self._of_shape = 0.0  # by example, what follows the shape of the newest loss. 0.0: nothing

    def batch_begins(self, event: BatchBegin) -> Habits:
        if event.trial:
            self._looks.expect()
        return ()

    def backward_begins(self, event: BackwardBegin) -> bool:
        self._examples = 0
        if not event.examples or not self._looks.due(event.examples):
            return False
        with internals.without_dispatch():  # numbers that a graph keeps are no tensors to a mode
            self._divisors = divisors_of(event.roots, event.grad_tensors, event.examples)
        self._examples = event.examples
        if event.step != self._step:
            self._step, self._of_step = event.step, []
        return True

    def backward_reaches(self) -> Habits:
        if not self._examples:
            return ()
        self._looks.count(self._examples)
        return [Habit("token-loss")] if self._differ() else ()

    def share(self, event: Meeting) -> Sequence[float]:
        return [math.nan if event.epoch_ends or not self._of_shape else self._of_shape]

    def compare(self, rows: Sequence[Sequence[float]]) -> Habits:
        first = rows[0][0]
        return [Habit("token-loss")] if any(differs(value, first) for [value] in rows) else ()

    def _differ(self) -> bool:
        """That of a micro-batch is then no part of a mean over the whole step."""
        if self._examples > 1 and any(item.value == 1.0 for item in self._divisors):
            return True  # a sum over examples that nothing divides
        ratios = [item._replace(value=item.value / self._examples) for item in self._divisors]
        self._of_shape = sum(item.value for item in ratios if item.of_shape)
        if len(self._of_step) != len(ratios):
            self._of_step = ratios
        if len(self._first) != len(ratios):
            self._first = ratios
        of_values = [
            (one, two)
            for one, two in zip(ratios, self._first)
            if not (one.of_shape and two.of_shape)
        ]
        pairs = [*of_values, *zip(ratios, self._of_step)]
        return any(differs(one.value, two.value) for one, two in pairs)
