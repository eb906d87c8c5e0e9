"""The first step in micro-batches of an epoch: its first micro-batch may show that gpq must not cut
the loop."""

from typing import Optional

from gpq_agent.train.attempt.rollback import StepRollback
from gpq_agent.train.attempt.setup import TrainingSetup
from gpq_agent.train.attempt.shape import BatchShape
from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.data.batches import Step
from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.events import FirstPartEnd
from gpq_agent.train.habits.observers import Observers


class FirstPart:
    """The state before it can be restored, and the step repeated in one piece."""

    def __init__(
        self, setup: TrainingSetup, parts: Parts, shape: BatchShape, observers: Observers
    ) -> None:
        self._setup, self._parts, self._shape, self._observers = setup, parts, shape, observers
        self._rollback: Optional[StepRollback] = None
        self._epoch = -1  # of the newest one that was looked at

    @property
    def is_open(self) -> bool:
        """Can the current step still be taken back?"""
        return self._rollback is not None

    def begin_step(self, step: Step) -> None:
        self._rollback = None
        if len(step.counts) > 1 and self._epoch != step.epoch:
            parts = self._parts.of_the_script()
            models = self._setup.training.models
            self._rollback = StepRollback(self._setup.gradients.parameters(), parts, models)

    def close(self) -> None:
        """It is too late to take the step back."""
        self._rollback = None

    def is_refused(self, micro: MicroBatch) -> bool:
        """Its first micro-batch is over. Was the step taken back? Collective."""
        rollback = self._rollback
        if rollback is None or micro.last or not self._must_stay_whole(micro, rollback):
            return False
        self._setup.gradients.leave(drop=True)
        rollback.undo()
        self._rollback = None
        return True

    def _must_stay_whole(self, micro: MicroBatch, rollback: StepRollback) -> bool:
        self._epoch = micro.step.epoch
        event = FirstPartEnd(rollback.moved(), rollback.changed_buffer(), rollback.changed_parts())
        self._observers.first_part_ends(event)
        if not self._shape.freedoms.agree():
            return False
        if not self._shape.lacks(micro.step.configuration):
            self._shape.is_late = True  # this step may continue as it began
            return False
        self._shape.reshape()
        return True
