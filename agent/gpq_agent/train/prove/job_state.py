"""Every tensor and number that a job trains or keeps, by the same name in any shape."""

from typing import Any, Dict, List, Mapping

import torch

from gpq_agent.train.gradients.step_gate import inner_optimizers
from gpq_agent.train.prove.determinism import copies
from gpq_agent.train.prove.sketch import (
    Fingerprint,
    Sketcher,
    flatten,
    named_optimizer,
    named_parameters,
)

# gpq's own parts of a checkpoint.
INTERNAL = ("cursor", "data", "progress", "ledger", "noise", "trained")
OUTSIDE = "outside the model"


class JobState:
    """`is_lead`: only this replica reads anything. `optimizers`: all that have stepped. `sketch`:
    tensor -> fingerprint."""

    def __init__(self, *, is_lead: bool) -> None:
        self.sketch = Sketcher()
        self.optimizers: List[Any] = []
        self._is_lead = is_lead
        self._names: Dict[int, str] = {}  # names of the model's parameters, by id

    def register(self, optimizer: Any) -> None:
        """It steps."""
        if all(optimizer is not registered for registered in self.optimizers):
            self.optimizers.append(optimizer)

    def gradients(self, optimizer: Any) -> Dict[str, Fingerprint]:
        """Its current parameters."""
        sketches: Dict[str, Fingerprint] = {}
        if self._is_lead:
            for name, parameter in named_parameters(optimizer, self._names):
                gradient = parameter.grad
                if gradient is not None and gradient.layout is torch.strided:
                    sketches["gradient of {}".format(name)] = self.sketch(gradient)
        return sketches

    def of(self, parts: Mapping[str, Any], *, is_last: bool) -> Dict[str, Any]:
        """`parts`: of checkpoints, by name. `is_last`: also look for copies of the models, which
        takes a walk through all objects."""
        if not self._is_lead:
            return {}
        parts = {name: part for name, part in parts.items() if name not in INTERNAL}
        models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        named_parameters = [pair for model in models.values() for pair in model.named_parameters()]
        self._names = {id(parameter): name for name, parameter in named_parameters}
        state: Dict[str, Any] = {}
        for name, part in parts.items():
            state.update(flatten("" if name == "model" else name, self._plain(part)))
        self._add_optimizers(state, [part for part in parts.values() if _is_optimizer(part)])
        if is_last:
            self._add_copies(state, list(models.values()))
        return state

    def _plain(self, part: Any) -> Any:
        return named_optimizer(part, self._names) if _is_optimizer(part) else part.state_dict()

    def _add_optimizers(self, state: Dict[str, Any], registered: List[Any]) -> None:
        """What is trained but not in a model. For registered optimizers also before their first
        step in this process, because restored state is compared."""
        for number, optimizer in enumerate(registered):
            place = "{}, optimizer {}".format(OUTSIDE, number + 1) if number else OUTSIDE
            self._add_outside(state, place, optimizer)
        inner = [part for optimizer in registered for part in inner_optimizers(optimizer)]
        for number, part in enumerate(inner):
            name = "inner optimizer {}".format(number + 1)
            state.update(flatten(name, named_optimizer(part, self._names)))
        for number, optimizer in enumerate(self.optimizers):
            if all(optimizer is not known_optimizer for known_optimizer in (*registered, *inner)):
                name = "another optimizer ({} {})".format(type(optimizer).__name__, number + 1)
                self._add_outside(state, name, optimizer)
                state.update(flatten(name, named_optimizer(optimizer, self._names)))

    def _add_outside(self, state: Dict[str, Any], place: str, optimizer: Any) -> None:
        for key, parameter in named_parameters(optimizer, self._names):
            if id(parameter) not in self._names:
                state["{}: {}".format(place, key)] = parameter.detach()

    def _add_copies(self, state: Dict[str, Any], models: List[torch.nn.Module]) -> None:
        for model in models:
            for number, copy in enumerate(copies(model, dict(enumerate(models)))):
                name = "copy {} of the model".format(number + 1)
                state.update(flatten(name, copy.state_dict()))


def _is_optimizer(part: Any) -> bool:
    return hasattr(part, "param_groups")
