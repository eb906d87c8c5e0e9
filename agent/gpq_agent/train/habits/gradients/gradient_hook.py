"""A hook of a parameter changes gradients before a batch is complete.

A hook that only reads is ignored. So are hooks of modules and activations, which gpq check covers.
"""

import weakref
from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch

from gpq_agent.train.events import BatchBegin, BatchEnd
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import gradient_hooks, version_of

WATCHED_STEPS = 5  # steps of an attempt in which new hooks are looked for

Own = Callable[[Tuple[Any, ...]], Any]


class GradientHook(Observer):
    """Wraps the hooks that the script has added so far. It may add some in any line."""

    codes = ("grad-hook",)
    changed = False  # a hook changed a gradient
    _often = True  # it is one of the first steps, or one that can still be taken back

    def attempt_begins(self) -> Habits:
        self.watch(self.job.parameters())
        return ()

    def batch_begins(self, event: BatchBegin) -> Habits:
        self._often = event.step < WATCHED_STEPS or event.trial
        if self._often:
            self.watch(self.job.parameters())
        return ()

    def backward_begins(self) -> Habits:
        if self._often:
            self.watch(self.job.parameters())
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        return [Habit("grad-hook")] if self.changed else ()

    def epoch_ends(self) -> Habits:
        self.watch(self.job.parameters())
        return ()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """From now on watch the hooks of these. torch reads them when it calls them."""
        for item in parameters:
            on_its_way, arrived = gradient_hooks(item)
            _wrap(on_its_way, _gradient, self)
            _wrap(arrived, _gradient_of_first, self)


class WatchedHook:
    """Wraps one hook. `own`: what the hook may change of its arguments. Copying or pickling it
    gives the hook alone."""

    def __init__(self, plain: Callable[..., Any], own: Own, observer: GradientHook) -> None:
        self._plain, self._own, self._observer = plain, own, weakref.ref(observer)
        self._fresh = True

    def __call__(self, *arguments: Any) -> Any:
        before = _tensors(self._own(arguments))
        marks, copies = _marks(before), []
        if self._fresh:  # once by value, because no version shows a write to .data
            self._fresh = False
            dense = [item for item in before if item.layout == torch.strided]
            copies = [(item, item.detach().to("cpu", copy=True)) for item in dense]
        result = self._plain(*arguments)
        after = _tensors(self._own(arguments) if result is None else result)
        if _marks(after) != marks or not all(_same(item, copy) for item, copy in copies):
            observer = self._observer()
            if observer is not None and observer.job.in_batch():
                observer.changed = True
                observer.job.attend()
        return result

    def __reduce__(self) -> Any:
        return _itself, (self._plain,)


def _wrap(hooks: Dict[int, Any], own: Own, observer: GradientHook) -> None:
    for number, hook in hooks.items():  # under its number, so that its handle can remove it
        if not isinstance(hook, WatchedHook):
            hooks[number] = WatchedHook(hook, own, observer)


def _gradient(arguments: Tuple[Any, ...]) -> Any:
    return arguments[0]


def _gradient_of_first(arguments: Tuple[Any, ...]) -> Any:
    return arguments[0].grad


def _tensors(value: Any) -> List[torch.Tensor]:
    several = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in several if isinstance(item, torch.Tensor)]


def _marks(tensors: List[torch.Tensor]) -> List[Tuple[int, int]]:
    return [(id(item), version_of(item)) for item in tensors]


def _same(item: torch.Tensor, copy: torch.Tensor) -> bool:
    return torch.allclose(item.detach().cpu(), copy, rtol=0.0, atol=0.0, equal_nan=True)


def _itself(hook: Any) -> Any:
    return hook
