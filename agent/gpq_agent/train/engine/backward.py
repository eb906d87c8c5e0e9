"""Runs around a backward pass in the body of a loop."""

from typing import Any, Callable, Optional, Tuple

from gpq_agent.train.gradients.backward_hook import listen
from gpq_agent.train.optim.step_gate import StepGate
from gpq_agent.train.telemetry.timing import StepClock

from .runtime import Runtime
from .setup import TrainingSetup


class BackwardCalls:
    """torch calls it for each backward pass.

    tail: when the gradients of the newest pass were ready, here and everywhere.
    """

    def __init__(
        self,
        runtime: Runtime,
        setup: TrainingSetup,
        gate: StepGate,
        report: Callable[[str], None],
        clock: StepClock,
    ) -> None:
        self.tail: Optional[Tuple[Any, ...]] = None
        self._runtime, self._setup, self._gate = runtime, setup, gate
        self._report, self._clock = report, clock
        self._is_after_step = False  # the current one: an optimizer has stepped in this body
        listen(self)

    def backward_begins(self) -> None:
        if self._runtime.evaluating:
            return
        gradients = self._setup.gradients
        gradients.backward_begins()
        self._is_after_step = self._gate.stepped
        if self._is_after_step:
            gradients.watch()

    def backward_ends(self) -> None:
        self._runtime.pulse.reduces(False)
        if self._runtime.evaluating:
            return
        gradients, probe = self._setup.gradients, self._setup.probe
        # Another model in the body, such as a measurement, is not part of the training.
        if self._is_after_step and gradients.is_reached():
            self._report("step-between")
        gradients.backward_ends()
        if self._runtime.replicas == 1 or not gradients.last:
            self.tail = ()  # nothing to wait for
        elif probe.last_ready is None:
            self.tail = None
        else:
            self.tail = (probe.last_ready, self._clock.mark())
