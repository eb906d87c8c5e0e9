"""Finds what belongs to the training and was never given to job.prepare() or job.state(): schedulers, scalers, copies of weights.

Looks once through the objects of the process, after the first steps. Refuses nothing; what it cannot see, it does not find.
"""

import gc
import weakref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from .internals import has_scaled

MOST_TENSORS = 100000  # a longer list is something else
NEAR = 0.25  # of the squared norm of the weights
MOST_WALKED = 10000  # objects of what was given that are followed


class Given(NamedTuple):
    """What the script has given. `parts`: everything that checkpoints hold; `gradients`: what the library itself keeps of those
    between two steps."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    parts: Sequence[Any]
    gradients: Callable[[], Sequence[torch.Tensor]] = list


KINDS = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler, torch.nn.Module, dict, list)
_RELEVANT: Dict[type, bool] = {}  # a process has a million objects of a few thousand kinds


class Copy(NamedTuple):
    """What was seen of one. `first`: its first tensor, held weakly."""

    first: Any
    value: float


class Search:
    """One per job. A copy of weights counts once it is seen to change: one that never does is the same after a restart."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._copies: Dict[int, Copy] = {}
        self._looked = False
        self._scheduler: Optional[str] = None

    def scheduler(self) -> str:
        """The class of a scheduler of one of the optimizers that was not given; "" if there is none.

        Searched for once: what sets rates is there when it first does, and a walk through all
        objects takes longer than many a step."""
        if self._scheduler is None:
            self._scheduler = self._unknown_scheduler()
        return self._scheduler

    def _unknown_scheduler(self) -> str:
        known = _reachable(self._given.parts)
        optimizers = {id(each) for each in self._given.optimizers}
        for item in gc.get_objects():
            if not issubclass(type(item), torch.optim.lr_scheduler.LRScheduler) or id(item) in known:
                continue
            if id(getattr(item, "optimizer", None)) in optimizers:
                return type(item).__name__
        return ""

    def look(self) -> List[Tuple[str, str]]:
        """(habit, what it is) of each kind that is found now. Between two steps; waits for the device."""
        given = self._given
        known = _reachable(given.parts) | _reachable(given.optimizers)
        for model in given.models:
            known.update(id(module) for module in model.modules())
        optimizers = {id(each) for each in given.optimizers}
        shapes = [shapes for shapes in map(_shapes, given.models) if sum(map(len, shapes)) > 1]
        storages = _storages(given)
        found: Dict[str, str] = {}
        copies: Dict[int, Copy] = {}
        for item in gc.get_objects():
            kind = type(item)
            if kind not in _RELEVANT:
                _RELEVANT[kind] = issubclass(kind, KINDS)
            if not _RELEVANT[kind] or id(item) in known:
                continue
            if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
                if id(getattr(item, "optimizer", None)) in optimizers:
                    found.setdefault("forgotten-scheduler", kind.__name__)
            elif issubclass(kind, torch.amp.GradScaler):
                if item.is_enabled() and has_scaled(item):
                    found.setdefault("forgotten-scaler", kind.__name__)
            else:
                tensors = _tensors(item)
                if _is_copy(tensors, shapes, storages):
                    copies[id(item)] = copy = Copy(weakref.ref(tensors[0]), _value(tensors))
                    if self._looked and self._is_kept(item, copy, tensors):
                        found.setdefault("forgotten-copy", _named(item))
        self._copies, self._looked = copies, True
        return list(found.items())

    def _is_kept(self, item: Any, copy: "Copy", tensors: List[torch.Tensor]) -> bool:
        """Does it outlive a step, and change? Tensors that stay and change do; new ones if they are near to the weights: what
        is not, is most often made anew in each step (perturbations, gradients)."""
        before = self._copies.get(id(item))
        if before is not None and before.first() is copy.first():
            return before.value != copy.value
        return any(_is_near(tensors, list(model.parameters())) for model in self._given.models)


def _reachable(roots: Iterable[Any]) -> Set[int]:
    """Ids of what these objects are made of. Not through modules of Python or classes."""
    known: Set[int] = set()
    waiting = list(roots)
    while waiting and len(known) < MOST_WALKED:
        item = waiting.pop()
        if id(item) in known or isinstance(item, (type, str, int, float, torch.Tensor)):
            continue
        known.add(id(item))
        if isinstance(item, dict):
            waiting += [item[key] for key in list(item)]
        elif isinstance(item, (list, tuple, set)):
            waiting += list(item)
        else:
            held = getattr(item, "__dict__", None)
            if isinstance(held, dict):
                known.add(id(held))
                waiting += list(held.values())
    return known


def _shapes(model: torch.nn.Module) -> List[Tuple[int, ...]]:
    return [tuple(item.shape) for item in model.parameters()]


def _storages(given: Given) -> Set[int]:
    """Of parameters, buffers, gradients and the state of optimizers: lists of these are no copies."""
    held: List[Any] = [*given.gradients()]
    for model in given.models:
        held += [*model.parameters(), *model.buffers()]
    for optimizer in given.optimizers:
        for group in optimizer.param_groups:
            held += group["params"]
        for state in list(optimizer.state.values()):
            held += [value for value in state.values() if isinstance(value, torch.Tensor)]
    held += [item.grad for item in held if isinstance(item, torch.Tensor) and item.grad is not None]
    return {item.data_ptr() for item in held if isinstance(item, torch.Tensor) and not item.is_sparse}


def _tensors(container: Any) -> List[torch.Tensor]:
    if isinstance(container, torch.nn.Module):
        return list(container.parameters())
    if not container or len(container) > MOST_TENSORS:
        return []
    first = next(iter(container.values())) if isinstance(container, dict) else container[0]
    if not isinstance(first, torch.Tensor):  # nearly always, so it is asked first
        return []
    values = list(container.values()) if isinstance(container, dict) else container
    return [item for item in values if type(item) in (torch.Tensor, torch.nn.Parameter)]


def _value(tensors: List[torch.Tensor]) -> float:
    return sum(float(item.detach().double().sum()) for item in tensors if item.is_floating_point())


def _is_near(tensors: List[torch.Tensor], weights: List[torch.Tensor]) -> bool:
    """Are they weights of about these values?"""
    distance = norm = 0.0
    rest = iter(tensors)
    for weight in weights:
        match = next((item for item in rest if item.shape == weight.shape), None)
        if match is None:
            return False
        distance += float((match.detach().double().cpu() - weight.detach().double().cpu()).square().sum())
        norm += float(weight.detach().double().square().sum())
    return distance < NEAR * norm


def _named(container: Any) -> str:
    if isinstance(container, torch.nn.Module):
        return type(container).__name__
    return "a list of tensors" if isinstance(container, list) else "a dictionary of tensors"


def _is_copy(tensors: List[torch.Tensor], shapes: Sequence[List[Tuple[int, ...]]], storages: Set[int]) -> bool:
    """Do they hold weights as a model has them, in memory of their own?"""
    if not tensors or all(len(tensors) < len(each) for each in shapes):
        return False
    plain = [item for item in tensors if item.is_floating_point() and not item.is_sparse and item.numel()]
    if any(item.data_ptr() in storages for item in plain):
        return False
    here = [tuple(item.shape) for item in plain]
    return any(len(each) > 0 and _is_within(each, here) for each in shapes)


def _is_within(wanted: List[Tuple[int, ...]], here: List[Tuple[int, ...]]) -> bool:
    """Do these shapes come in this order, perhaps with others (buffers) between?"""
    rest = iter(here)
    return all(any(shape == other for other in rest) for shape in wanted)
