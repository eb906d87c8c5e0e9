"""What the script does at the head of an epoch, between job.epochs() and the loop over the loader: it is done again when an
attempt begins in the midst of the epoch. Notices what of it changes weights, optimizers or schedules; decides nothing.
"""

import time
from typing import Any, Iterator, List, Optional, Sequence

import torch
from torch.nn.parameter import is_lazy

from .stepping import StepGate, inner_optimizers
from .trial import Fingerprint

ALWAYS = 3  # heads of an attempt that are looked at, whatever it costs
SHARE = 200.0  # times what a look took, until the next one after these


class Head:
    """One per job: `begin` at the head of a whole epoch, `changed` at the end of it."""

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Any], gate: StepGate) -> None:
        self.asked = False  # the script has asked whether the epoch begins
        self._models, self._gate = models, gate
        self._optimizers = [part for each in optimizers for part in (each, *inner_optimizers(each))]
        self._weights: Optional[Fingerprint] = None
        self._state: Optional[Fingerprint] = None
        self._scheduled = 0
        self._looks = 0
        self._next = 0.0

    def begin(self, *, whole: bool) -> None:
        """job.epochs() is about to give an epoch. `whole`: from its beginning. Waits for the device."""
        self.asked = False
        self._weights = self._state = None
        begin = time.perf_counter()
        if not whole or (self._looks >= ALWAYS and begin < self._next):
            return
        self._looks += 1
        self._weights, self._state = self._fingerprint_weights(), self._fingerprint_state()
        self._scheduled = self._gate.scheduled_outside
        now = time.perf_counter()
        self._next = now + SHARE * (now - begin)

    def changed(self) -> str:
        """What the head has done, without asking where the epoch stands; "" if nothing. Waits for the device."""
        weights, state = self._weights, self._state
        if weights is None or state is None or self.asked:
            return ""
        if not weights.equals(self._fingerprint_weights()):
            return "changes weights"
        if not state.equals(self._fingerprint_state()):
            return "changes the state of an optimizer"
        return "steps a schedule" if self._gate.scheduled_outside > self._scheduled else ""

    def close(self) -> None:
        """The loop over the loader has begun to train: what changes from now on is no business of the head's."""
        self._weights = self._state = None

    def _fingerprint_weights(self) -> Fingerprint:
        found: List[torch.Tensor] = []
        for model in self._models:
            found += [*model.parameters(), *model.buffers()]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                found += group["params"]
        return Fingerprint(_measured(found))

    def _fingerprint_state(self) -> Fingerprint:
        states = [getattr(optimizer, "state", {}) for optimizer in self._optimizers]
        return Fingerprint(_measured([item for state in states for item in _tensors(state)]))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _measured(found: List[torch.Tensor]) -> List[Any]:
    known = {id(item): item for item in found if not is_lazy(item) and item.is_floating_point()}
    return list(known.values())
