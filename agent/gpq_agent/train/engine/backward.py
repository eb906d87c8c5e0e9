"""Around a backward pass in the body of a loop."""

from typing import Any, Optional, Sequence, Tuple

from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.events import BackwardBegin
from gpq_agent.train.gradients.backward_hook import listen
from gpq_agent.train.habits.observers import Observers
from gpq_agent.train.optim.step_gate import StepGate
from gpq_agent.train.telemetry.timing import StepClock

from .runtime import Runtime
from .setup import TrainingSetup
from .steps import StepRecord
from .weighing import Weighing


class BackwardCalls:
    """Told of each by torch. `micro`: the micro-batch in hand. `tail`: moments at which the
    gradients of the newest were ready, here and everywhere."""

    def __init__(
        self,
        runtime: Runtime,
        setup: TrainingSetup,
        gate: StepGate,
        observers: Observers,
        steps: StepRecord,
        weighing: Weighing,
        clock: StepClock,
    ) -> None:
        self.micro: Optional[MicroBatch] = None
        self.tail: Optional[Tuple[Any, ...]] = None
        self._runtime, self._setup, self._gate = runtime, setup, gate
        self._observers, self._steps, self._weighing = observers, steps, weighing
        self._clock = clock
        self._is_watched = False  # an observer asks whether the one that runs reaches parameters
        listen(self)

    def backward_begins(self, roots: Sequence[Any], grad_tensors: Sequence[Any]) -> None:
        if self._runtime.evaluating:
            return
        gradients, micro = self._setup.gradients, self.micro
        examples = 0
        if micro is not None and not self._weighing.is_used:
            examples = micro.step.counts[micro.place]
        event = BackwardBegin(roots, grad_tensors, self._steps.count, examples, self._gate.stepped)
        self._is_watched = self._observers.backward_begins(event)
        gradients.backward_begins()
        if self._is_watched:
            gradients.watch()

    def backward_ends(self) -> None:
        if self._runtime.evaluating:
            return
        gradients, probe = self._setup.gradients, self._setup.probe
        # What another model does in the body, a measurement say, is no part of the training.
        if self._is_watched and gradients.is_reached():
            self._observers.backward_reaches()
        gradients.backward_ends()
        if self._runtime.replicas == 1 or not gradients.last:
            self.tail = ()  # nothing to wait for
        elif probe.last_ready is None:
            self.tail = None
        else:
            self.tail = (probe.last_ready, self._clock.mark())
