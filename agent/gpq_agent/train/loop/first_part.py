"""The first step in micro-batches of an epoch: its first micro-batch may show that gpq must not cut
the loop."""

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch.nn.parameter import is_lazy

from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.data.batches import Step
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.runtime import BatchShape
from gpq_agent.train.loop.setup import TrainingSetup


class State(NamedTuple):
    """The sums of all tensors, and other values, by name. They show a change without a copy.

    Sums have shape (tensors,), float64, on the CPU.
    """

    parameters: torch.Tensor
    buffers: Dict[str, Any]
    parts: Dict[str, Any]


RUINED = (
    "the first step that gpq cut into micro-batches left weights that are not finite, because the "
    "loop changes them itself. From now on gpq keeps its steps whole"
)


class RuinedWeights(GpqTrainError):
    """The script alone would not have made such weights, so the job is not to blame."""


class FirstPart:
    """`before`: the state at its start, while it runs. What changed in it is told, and later steps
    stay in one piece. This one continues as it began, because taking it back would need a copy of
    everything."""

    def __init__(
        self, setup: TrainingSetup, parts: Parts, shape: BatchShape, report: Callable[..., None]
    ) -> None:
        self._setup, self._parts, self._shape, self._report = setup, parts, shape, report
        self.before: Optional[State] = None
        self._epoch = -1  # of the newest one that was looked at

    def begin_step(self, step: Step) -> None:
        """Waits for the device once per epoch, if the step has several micro-batches."""
        is_looked_at = len(step.micros) > 1 and self._epoch != step.epoch
        self.before = self._state() if is_looked_at else None

    def ends(self, step: Step) -> None:
        """A micro-batch of it is used up. Collective. Raises RuinedWeights."""
        before, self.before = self.before, None
        if before is None:
            return
        after = self._state()
        self._epoch = step.epoch
        if not torch.equal(before.parameters.nan_to_num(), after.parameters.nan_to_num()):
            self._report("hand-step")
        buffers = _changes(before.buffers, after.buffers)
        if buffers:
            self._report("moving-buffer", buffers[0])
        parts = _changes(before.parts, after.parts)
        if parts:
            self._report("state-in-pieces", ", ".join(parts))
        if self._shape.freedoms.agree():
            self._shape.is_late = True
        if before.parameters.isfinite().all() and not after.parameters.isfinite().all():
            raise RuinedWeights(RUINED, "run it again: it resumes from its newest checkpoint")

    def _state(self) -> State:
        """Waits for the device."""
        parameters = list(filter(_is_tensor, self._setup.gradients.parameters()))
        named = (model.named_buffers() for model in self._setup.training.models)
        buffers = {name: item for pairs in named for name, item in pairs if _is_tensor(item)}
        parts: Dict[str, Any] = {}
        for name, part in self._parts.of_the_script().items():
            try:
                parts[name] = list(_leaves(part.state_dict()))
            except Exception:  # it cannot be saved now, which the next checkpoint reports
                continue
        tensors = [item for part in parts.values() for item in part if _is_tensor(item)]
        sums = [torch.zeros(0, dtype=torch.float64)]
        for item in (*parameters, *buffers.values(), *tensors):
            item = item.detach().abs() if item.is_complex() else item.detach()
            # Half types are too narrow for a sum. A wider one than needed is slow on a CPU.
            is_half = item.is_floating_point() and item.element_size() < 4
            total = item.sum(dtype=torch.float32 if is_half else None)
            sums.append(total.double().reshape(1).cpu())
        whole, count = torch.cat(sums), len(parameters)
        values = iter(whole[count:].nan_to_num().tolist())
        moved_buffers = {name: next(values) for name in buffers}
        for name, part in parts.items():
            parts[name] = [next(values) if _is_tensor(item) else item for item in part]
        return State(whole[:count], moved_buffers, parts)


def _is_tensor(item: Any) -> bool:
    """Can its sum be taken?"""
    return isinstance(item, torch.Tensor) and item.layout == torch.strided and not is_lazy(item)


def _leaves(state: Any) -> Iterator[Any]:
    """The tensors and plain values of a state."""
    if isinstance(state, (list, tuple)):
        for item in state:
            yield from _leaves(item)
    elif isinstance(state, dict):
        for item in state.values():
            yield from _leaves(item)
    elif _is_tensor(state) or isinstance(state, (bool, int, float, str)):
        yield state


def _changes(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    """The names whose values differ."""
    return [name for name in before if name in after and before[name] != after[name]]
