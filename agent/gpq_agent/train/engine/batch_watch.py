"""Decides when observers hear of a micro-batch: in watched steps, and when the script does
something new."""

from typing import Dict, Tuple

from gpq_agent.train.attempt.statistics import StepRecord
from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.events import BatchBegin, BatchEnd, GradientFacts, OptimizerFacts
from gpq_agent.train.habits.observers import Observers

UNTOUCHED = GradientFacts(changed_between=False, replaced=False)


class BatchWatch:
    """One per training loop."""

    def __init__(self, observers: Observers, steps: StepRecord) -> None:
        self._observers, self._steps = observers, steps
        # What the script did in the newest micro-batch at each place in a step, while it does the
        # same.
        self._usual: Dict[Tuple[int, bool], OptimizerFacts] = {}

    def training_begins(self) -> None:
        """The first micro-batch of the attempt has arrived."""
        self._observers.training_begins()

    def begins(self, micro: MicroBatch) -> None:
        """The script is about to get it."""
        if self._steps.is_watched:
            self._observers.batch_begins(BatchBegin(self._steps.count, micro.place))

    def ends(
        self,
        micro: MicroBatch,
        optimizers: OptimizerFacts,
        gradients: GradientFacts,
        *,
        left_early: bool,
    ) -> None:
        """The script is done with it."""
        place = (micro.place, micro.last)
        is_plain = not left_early and gradients == UNTOUCHED
        is_usual = is_plain and self._usual.get(place) == optimizers
        if not is_usual and place in self._usual:
            self._usual = {}
        if is_plain:
            self._usual[place] = optimizers
        if is_usual and not self._steps.is_watched and not self._observers.is_attentive:
            return
        event = BatchEnd(
            self._steps.count,
            micro.step.epoch,
            micro.place,
            micro.last,
            left_early,
            optimizers,
            gradients,
        )
        self._observers.batch_ends(event)
