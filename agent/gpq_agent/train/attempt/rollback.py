"""The state before a step, so that the step can be undone and repeated.

Copies are on the host, because watching a step must not use up GPU memory. Decides nothing.
"""

import contextlib
import io
from typing import Any, Dict, Iterable, Mapping, Sequence

import torch

Parameter = torch.nn.Parameter


class StepRollback:
    """The state before the first micro-batch: parameters, their gradients, and what the script
    registered."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        parts: Mapping[str, Any],
        models: Iterable[torch.nn.Module] = (),
    ) -> None:
        self._parameters = list(parameters)
        self._buffers = {
            name: item
            for model in models
            for name, item in model.named_buffers()
            if item is not None
        }
        self._saved_buffers = {name: _copied(item) for name, item in self._buffers.items()}
        self._values = [_copied(item) for item in self._parameters]
        # Cleared gradients need no copy: they are most often None, or zero.
        gradients = [item.grad for item in self._parameters]
        self._gradients = [None if item is None else _copied(item) for item in gradients]
        self._parts = dict(parts)
        self._states: Dict[str, io.BytesIO] = {}
        for name, part in self._parts.items():
            # Skip what cannot be saved now: the next checkpoint reports it.
            with contextlib.suppress(Exception):
                stream = io.BytesIO()
                torch.save(part.state_dict(), stream)
                self._states[name] = stream

    def undo(self) -> None:
        """Restore everything. Does not write to what has not changed, because a graph that the
        script keeps may need it."""
        with torch.no_grad():
            for item, value, gradient in zip(self._parameters, self._values, self._gradients):
                _put_back(item, value)
                item.grad = None if gradient is None else gradient.to(item.device)
            for name, buffer in self._buffers.items():
                _put_back(buffer, self._saved_buffers[name])
        for name, stream in self._states.items():
            self._parts[name].load_state_dict(_loaded(stream))


def _copied(item: torch.Tensor) -> torch.Tensor:
    return item.detach().to("cpu", copy=True)


def _loaded(stream: io.BytesIO) -> Any:
    """Tensors return to their own devices."""
    stream.seek(0)
    return torch.load(stream, weights_only=False)  # bytes that gpq itself wrote


def _put_back(item: torch.Tensor, value: torch.Tensor) -> None:
    if not torch.equal(item.detach().cpu(), value):
        item.copy_(value)
