"""Notices hooks that change gradients on their way through a model: of its modules, and of tensors that are no leaves.

A hook that only looks is left alone. What an autograd.Function does in its own backward is not seen.
"""

import functools
import weakref
from typing import Any, Callable, Iterable, List

import torch

from .internals import has_backward_hooks

_changed: "List[weakref.ref[Changes]]" = []
_plain: Any = None


class Changes:
    """`changed`: a hook on a computed tensor has put another gradient in the place of its own since `listen`."""

    def __init__(self) -> None:
        self.changed = False


def listen() -> Changes:
    """From now on hooks of tensors are watched. Held weakly."""
    global _plain
    if _plain is None:
        _plain = torch.Tensor.register_hook
        torch.Tensor.register_hook = _around(_plain)  # type: ignore[method-assign]
    found = Changes()
    _changed[:] = [each for each in _changed if each() is not None] + [weakref.ref(found)]
    return found


def _around(plain: Callable[..., Any]) -> Any:
    @functools.wraps(plain)
    def register_hook(self: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        if self.is_leaf:  # of parameters, which are looked at by themselves, and of inputs
            return plain(self, hook)

        @functools.wraps(hook)
        def watched(gradient: torch.Tensor) -> Any:
            found = hook(gradient)
            if found is not None:
                for reference in _changed:
                    changes = reference()
                    if changes is not None:
                        changes.changed = True
            return found

        return plain(self, watched)

    return register_hook


def has_module_hooks(models: Iterable[torch.nn.Module]) -> bool:
    """Has the script put backward hooks on modules? Those may change what flows through."""
    return any(has_backward_hooks(module) for model in models for module in model.modules())
