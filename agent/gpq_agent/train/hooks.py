"""Notices hooks that change gradients before a batch is complete: of parameters, of modules, and of
tensors that are no leaves.

A hook that only looks is left alone. What an autograd.Function does in its own backward is not
seen.
"""

import functools
import weakref
from operator import itemgetter
from typing import Any, Callable, Dict, Iterable, List, Set, Tuple

import torch

from .internals import backward_hooks, gradient_hooks, version_of

GRADIENT, FLOW = "grad-hook", "flow-hook"

Own = Callable[[Tuple[Any, ...]], Any]

_listening: "List[weakref.ref[Changes]]" = []
_plain: Any = None


class Changes:
    """`codes`: the habits that hooks have shown since `listen`."""

    def __init__(self) -> None:
        self.codes: Set[str] = set()


def listen() -> Changes:
    """From now on hooks of computed tensors are watched. Held weakly."""
    global _plain
    if _plain is None:
        _plain = torch.Tensor.register_hook
        torch.Tensor.register_hook = _around(_plain)  # type: ignore[method-assign]
    changes = Changes()
    _listening[:] = [one for one in _listening if one() is not None] + [weakref.ref(changes)]
    return changes


def watch(parameters: Iterable[torch.Tensor], models: Iterable[torch.nn.Module]) -> None:
    """From now on the hooks that are on these now are watched. torch reads them when it calls them,
    those of a module when its forward pass begins."""
    for item in parameters:
        on_its_way, arrived = gradient_hooks(item)
        _wrap(on_its_way, GRADIENT, itemgetter(0))
        _wrap(arrived, GRADIENT, _gradient_of_first)
    for model in models:
        for module in model.modules():
            for several in backward_hooks(module):
                _wrap(several, FLOW, itemgetter(1))


class Watched:
    """Stands around a hook. `own`: what of its arguments the hook may change. A copy, or a pickle,
    is the hook alone."""

    def __init__(self, plain: Callable[..., Any], code: str, own: Own) -> None:
        self._plain, self._code, self._own = plain, code, own
        self._fresh = code == GRADIENT

    def __call__(self, *given: Any) -> Any:
        before = _tensors(self._own(given))
        marks, copies = _marks(before), []
        if self._fresh:  # once by value: no version tells what is written into .data
            self._fresh = False
            dense = [item for item in before if item.layout == torch.strided]
            copies = [(item, item.detach().to("cpu", copy=True)) for item in dense]
        result = self._plain(*given)
        after = _tensors(self._own(given) if result is None else result)
        if _marks(after) != marks or not all(_same(item, copy) for item, copy in copies):
            for reference in _listening:
                changes = reference()
                if changes is not None:
                    changes.codes.add(self._code)
        return result

    def __reduce__(self) -> Any:
        return _itself, (self._plain,)


def _wrap(hooks: Dict[int, Any], code: str, own: Own) -> None:
    for number, hook in hooks.items():  # under its number, by which its handle removes it
        if not isinstance(hook, Watched):
            hooks[number] = Watched(hook, code, own)


def _around(plain: Callable[..., Any]) -> Any:
    @functools.wraps(plain)
    def register_hook(self: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        # Leaves are inputs, and parameters, whose hooks `watch` wraps.
        return plain(self, hook if self.is_leaf else Watched(hook, FLOW, itemgetter(0)))

    return register_hook


def _gradient_of_first(given: Tuple[Any, ...]) -> Any:
    return given[0].grad


def _tensors(value: Any) -> List[torch.Tensor]:
    several = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in several if isinstance(item, torch.Tensor)]


def _marks(tensors: List[torch.Tensor]) -> List[Tuple[int, int]]:
    return [(id(item), version_of(item)) for item in tensors]


def _same(item: torch.Tensor, copy: torch.Tensor) -> bool:
    return torch.allclose(item.detach().cpu(), copy, rtol=0.0, atol=0.0, equal_nan=True)


def _itself(hook: Any) -> Any:
    return hook
