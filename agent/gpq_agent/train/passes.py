"""Tells when an outermost backward pass begins and ends, by standing around torch.autograd.backward.

Tensor.backward calls that. Passes inside a pass, as reentrant checkpointing makes them, are not told. Changes no gradient itself.
"""

import functools
import weakref
from typing import Any, List, Protocol, Sequence

import torch


class Listener(Protocol):
    """Who wants to know. Held weakly."""

    def begin_pass(self, roots: Sequence[Any], given: Sequence[Any]) -> None:
        """A backward pass is about to run, from these tensors. `given`: the gradient of each, None where it is 1."""

    def end_pass(self) -> None:
        """It has run: gradients are in place. Not called after one that failed."""


class _Passes:
    def __init__(self) -> None:
        self.listeners: List["weakref.ref[Listener]"] = []
        self.running = False
        self.plain: Any = None

    def alive(self) -> List[Listener]:
        found = [reference() for reference in self.listeners]
        if None in found:
            self.listeners = [reference for reference in self.listeners if reference() is not None]
            found = [listener for listener in found if listener is not None]
        return found  # type: ignore[return-value]


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
            roots = _several(args[0] if args else kwargs.get("tensors"))
            given = _several(args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
            listeners = _passes.alive()
            for listener in listeners:
                listener.begin_pass(roots, given if len(given) == len(roots) else [None] * len(roots))
            plain(*args, **kwargs)
        finally:
            _passes.running = False
        for listener in listeners:
            listener.end_pass()

    return backward


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
