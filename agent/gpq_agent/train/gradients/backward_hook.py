"""Reports when an outermost backward call starts and ends. This is the only patch of
torch.autograd.backward.

Tensor.backward calls that function. Calls within a call, as in reentrant checkpointing, are not
reported. Changes no gradient.
"""

import functools
import weakref
from typing import Any, List, Protocol

import torch


class Listener(Protocol):
    """A listener. The hook keeps a weak reference to it."""

    def backward_begins(self) -> None:
        """A backward pass is about to run."""

    def backward_ends(self) -> None:
        """The pass has run, and gradients are in place. Not called after one that failed."""


class _BackwardCalls:
    def __init__(self) -> None:
        self.listeners: List["weakref.ref[Listener]"] = []
        self.runs = False  # an outermost one
        self.original: Any = None  # torch's own function

    def alive(self) -> List[Listener]:
        listeners = [reference() for reference in self.listeners]
        if None in listeners:
            self.listeners = [reference for reference in self.listeners if reference() is not None]
            listeners = [listener for listener in listeners if listener is not None]
        return listeners  # type: ignore[return-value]


_calls = _BackwardCalls()


def listen(listener: Listener) -> None:
    """From now on report every outermost backward call of this process to `listener`."""
    if _calls.original is None:
        _calls.original = torch.autograd.backward
        torch.autograd.backward = _around(_calls.original)
    _calls.listeners.append(weakref.ref(listener))


def _around(original: Any) -> Any:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        # Checkpointing may run nested calls in the engine's own threads, so one flag serves the
        # process.
        if _calls.runs or not _calls.listeners:
            original(*args, **kwargs)
            return
        _calls.runs = True
        try:
            listeners = _calls.alive()
            for listener in listeners:
                listener.backward_begins()
            original(*args, **kwargs)
        finally:
            _calls.runs = False
        for listener in listeners:
            listener.backward_ends()

    return backward
