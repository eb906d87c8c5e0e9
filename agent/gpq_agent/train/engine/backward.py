"""Runs around an outermost backward pass in the body of a loop.

This is the only patch of torch.autograd.backward, which Tensor.backward calls. Passes within a
pass, as in reentrant checkpointing, do not count.
"""

import functools
import weakref
from typing import Any, Callable, List, Optional, Protocol, Tuple

import torch

from gpq_agent.train.telemetry.timing import StepClock

from .runtime import Runtime
from .setup import TrainingSetup


class Trial(Protocol):
    """Hears of the passes in bodies that do not count. `weight`: of the batch of the current
    one."""

    weight: float

    def backward_begins(self) -> None: ...

    def backward_ends(self) -> None: ...


class BackwardCalls:
    """torch calls it for each backward pass.

    trial: None in a body that counts.
    tail: when the gradients of the newest pass were ready, here and everywhere.
    """

    def __init__(
        self,
        runtime: Runtime,
        setup: TrainingSetup,
        report: Callable[[str], None],
        clock: StepClock,
    ) -> None:
        self.tail: Optional[Tuple[Any, ...]] = None
        self.trial: Optional[Trial] = None
        self._runtime, self._setup, self._report = runtime, setup, report
        self._clock = clock
        listen(self)

    def backward_begins(self) -> None:
        if not self._runtime.evaluating:
            (self.trial or self._setup.gradients).backward_begins()

    def backward_ends(self) -> None:
        """Not called after a pass that failed."""
        if self._runtime.replicas > 1:
            self._runtime.pulse.reduces(False)
        if self._runtime.evaluating:
            return
        if self.trial is not None:
            self.trial.backward_ends()
            return
        gradients, probe = self._setup.gradients, self._setup.probe
        gradients.backward_ends()
        if gradients.repeats:
            self._report("two-passes")
        if self._runtime.replicas == 1 or not gradients.last:
            self.tail = ()  # nothing to wait for
        elif probe.last_ready is None:
            self.tail = None
        else:
            self.tail = (probe.last_ready, self._clock.mark())


class _Patch:
    def __init__(self) -> None:
        self.listeners: List["weakref.ref[BackwardCalls]"] = []
        self.runs = False  # an outermost pass
        self.original: Any = None  # torch's own function


_patch = _Patch()


def listen(listener: BackwardCalls) -> None:
    """From now on call it for every pass of this process, as long as somebody else keeps it."""
    if _patch.original is None:
        _patch.original = torch.autograd.backward
        torch.autograd.backward = _around(_patch.original)
    _patch.listeners = [item for item in _patch.listeners if item() is not None]
    _patch.listeners.append(weakref.ref(listener))


def _around(original: Any) -> Any:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        # Checkpointing may run nested calls in the engine's own threads, so one flag serves the
        # process.
        if _patch.runs or not _patch.listeners:
            original(*args, **kwargs)
            return
        _patch.runs = True
        try:
            for reference in _patch.listeners:
                listener = reference()
                if listener is not None:
                    listener.backward_begins()
            original(*args, **kwargs)
        finally:
            _patch.runs = False
        for reference in _patch.listeners:
            listener = reference()
            if listener is not None:
                listener.backward_ends()

    return backward
