"""The state before a step, so that the step can be undone and repeated.

Copies are on the host, because watching a step must not use up GPU memory. Decides nothing.
"""

import contextlib
import io
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

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

    def moved(self) -> bool:
        """Has the script changed parameters? Waits for the device."""
        return any(not alike(item, value) for item, value in zip(self._parameters, self._values))

    def changed_buffer(self) -> str:
        """The name of a buffer that a forward pass has changed, or "". Waits for the device."""
        pairs = ((name, item, self._saved_buffers[name]) for name, item in self._buffers.items())
        return next((name for name, item, value in pairs if not alike(item, value)), "")

    def changed_parts(self) -> List[str]:
        """The names of registered parts that have changed. Waits for the device."""
        saved_states = ((name, _loaded(stream, "cpu")) for name, stream in self._states.items())
        return [
            name for name, state in saved_states if not alike(self._parts[name].state_dict(), state)
        ]

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


def _loaded(stream: io.BytesIO, device: Optional[str] = None) -> Any:
    """Without a map, tensors return to their own devices."""
    stream.seek(0)
    return torch.load(
        stream, map_location=device, weights_only=False
    )  # bytes that gpq itself wrote


def _put_back(item: torch.Tensor, value: torch.Tensor) -> None:
    if not alike(item, value):
        item.copy_(value)


def alike(first: Any, second: Any) -> bool:
    """Are two states equal? Tensors are compared by value, on any device."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first.detach().cpu(), second.detach().cpu())
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return False
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(alike(first[k], second[k]) for k in first)
        )
    if isinstance(first, (list, tuple)):
        same = isinstance(second, (list, tuple)) and len(first) == len(second)
        return same and all(alike(a, b) for a, b in zip(first, second))
    try:
        return bool(first == second)
    except Exception:  # a script's own object may compare in any way, so it does not count as equal
        return False
