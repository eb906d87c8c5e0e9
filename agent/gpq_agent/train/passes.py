"""Tells when an outermost backward pass begins and ends, by standing around torch.autograd.backward.

Tensor.backward calls that. Passes inside a pass, as reentrant checkpointing makes them, are not told. Changes no gradient itself.
"""

import functools
import weakref
from typing import Any, List, Protocol

import torch


class Listener(Protocol):
    """Who wants to know. Held weakly."""

    def begin_pass(self) -> None:
        """A backward pass is about to run."""

    def end_pass(self) -> None:
        """It has run: gradients are in place. Not called after one that failed."""


class _Passes:
    def __init__(self) -> None:
        self.listeners: List["weakref.ref[Listener]"] = []
        self.running = False
        self.plain: Any = None

    def tell(self, begin: bool) -> None:
        for reference in list(self.listeners):
            listener = reference()
            if listener is None:
                self.listeners.remove(reference)
            elif begin:
                listener.begin_pass()
            else:
                listener.end_pass()


_passes = _Passes()


def listen(listener: Listener) -> None:
    """From now on `listener` is told of every outermost backward pass of this process."""
    if _passes.plain is None:
        _passes.plain = torch.autograd.backward
        torch.autograd.backward = _around(_passes.plain)
    _passes.listeners.append(weakref.ref(listener))


def _around(plain: Any) -> Any:
    @functools.wraps(plain)
    def backward(*args: Any, **kwargs: Any) -> None:
        # The nested ones of checkpointing may run in the engine's own threads: one flag for the process, not one a thread.
        if _passes.running or not _passes.listeners:
            plain(*args, **kwargs)
            return
        _passes.running = True
        try:
            _passes.tell(begin=True)
            plain(*args, **kwargs)
        finally:
            _passes.running = False
        _passes.tell(begin=False)

    return backward
