"""Searches for what the job was never given: schedulers, scalers, copies of weights.

Looks through the objects of the process without running code of their classes, which could do
anything. Averaged weights change from step to step, and a snapshot seldom does. So copies are
looked at only after the first steps. One that starts later, or changes once per epoch, is left to
gpq check.
"""

import gc
import weakref
from itertools import compress, repeat
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from gpq_agent.train.habits.observer import JobView
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.internals import attributes_of, has_scaled, parameters_of

MOST_TENSORS = 100000  # a longer list is something else
NEAR = 0.25  # of the squared norm of the weights
MOST_WALKED = 10000  # objects to follow from what was given


STATEFUL = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
COPIES = (torch.nn.Module, dict, list)
CONTAINERS: Dict[type, Any] = {dict: dict.values, list: list.__iter__}  # and their values
PLAIN = {torch.Tensor, torch.nn.Parameter}  # others would run code of their classes


class WeightCopy(NamedTuple):
    """What was seen of one copy. `first`: its first tensor, held weakly."""

    first: Any
    value: float


class Search:
    """One per job. A copy of weights counts if one of the first steps changed it in place, or two
    in a row created it again. A snapshot, for example of the best weights, is only made now and
    then."""

    def __init__(self, job: JobView) -> None:
        self._job = job
        self._copies: Optional[Dict[int, WeightCopy]] = None  # from the previous early look
        self._renewed: Set[str] = set()  # kinds that the previous step created

    def look(self, *, early: bool) -> List[Habit]:
        """What was found of each kind. `early`: after one of the first steps, one real step after
        the previous early look. Looks at copies too, and waits for the device."""
        job = self._job
        own_ids = _reachable(job.parts) | _reachable(job.optimizers)
        for model in job.models:
            own_ids.update(id(module) for module in model.modules())
        optimizers = {id(optimizer) for optimizer in job.optimizers}
        shapes = [shapes for shapes in map(_shapes, job.models) if sum(map(len, shapes)) > 1]
        storages = _storages(job) if early else set()
        habits: Dict[str, str] = {}
        copies: Dict[int, WeightCopy] = {}
        renewed: Set[str] = set()
        for item in _candidates(STATEFUL + COPIES if early else STATEFUL):
            if id(item) in own_ids:
                continue
            try:
                if issubclass(type(item), STATEFUL):
                    code = _code(item, optimizers)
                    if code:
                        habits.setdefault(code, type(item).__name__)
                    continue
                tensors = _tensors(item)
                if _is_copy(tensors, shapes, storages):
                    copies[id(item)] = copy = WeightCopy(weakref.ref(tensors[0]), _value(tensors))
                    if self._is_average(item, copy, tensors, renewed):
                        habits.setdefault("forgotten-copy", _named(item))
            except (
                Exception
            ):  # for example half created, or another thread's: no reason to end a training
                continue
        if early:
            self._copies, self._renewed = copies, renewed
        return [Habit(code, name) for code, name in habits.items()]

    def _is_average(
        self, item: Any, copy: WeightCopy, tensors: List[torch.Tensor], renewed: Set[str]
    ) -> bool:
        """New tensors count if they are close to the weights. Others (perturbations, gradients) are
        mostly created in each step. `renewed` gets their kind."""
        if self._copies is None:
            return False
        before = self._copies.get(id(item))
        if before is not None and before.first() is copy.first():
            return before.value != copy.value
        if not any(_is_near(tensors, list(model.parameters())) for model in self._job.models):
            return False
        renewed.add(_named(item))
        return _named(item) in self._renewed


def scheduler_of(job: JobView) -> str:
    """The class of a scheduler for an optimizer of this job that the job was not given, or "".
    Walks through all objects, which takes longer than many steps."""
    habits = Search(job).look(early=False)
    return next((habit.detail for habit in habits if habit.code == "forgotten-scheduler"), "")


class _Relevance(Dict[type, bool]):
    """Is an object of this class worth a look? Asked for a few thousand classes."""

    def __init__(self, kinds: Tuple[type, ...]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, self._kinds)
        return self[kind]


def _candidates(kinds: Tuple[type, ...]) -> List[Any]:
    """The objects of these kinds, except dictionaries and lists that do not start with a tensor. A
    process has a million objects, so there is no line of Python for each."""
    objects = gc.get_objects()
    relevant_objects = list(
        compress(objects, map(_Relevance(kinds).__getitem__, map(type, objects)))
    )
    candidates = [
        item for item in relevant_objects if type(item) is not dict and type(item) is not list
    ]
    for kind, values in CONTAINERS.items():
        items = [item for item in relevant_objects if type(item) is kind]
        beginnings = map(next, map(iter, map(values, items)), repeat(None))
        candidates += compress(items, map(PLAIN.__contains__, map(type, beginnings)))
    return candidates


def _code(item: Any, optimizers: Set[int]) -> str:
    """What a script forgot: the class of this scheduler or scaler, or "" if it trains nothing
    here."""
    if issubclass(type(item), torch.amp.GradScaler):
        return "forgotten-scaler" if has_scaled(item) else ""
    return (
        "forgotten-scheduler"
        if id(dict.get(attributes_of(item), "optimizer")) in optimizers
        else ""
    )


def _reachable(roots: Iterable[Any]) -> Set[int]:
    """The ids of everything that these objects consist of, not through classes."""
    ids: Set[int] = set()
    stack = list(roots)
    while stack and len(ids) < MOST_WALKED:
        item = stack.pop()
        if id(item) in ids or issubclass(type(item), (type, str, int, float, torch.Tensor)):
            continue
        ids.add(id(item))
        try:
            stack += _inside(item)
        except Exception:  # it has no attributes or is half created, so it leads no further
            continue
    return ids


def _inside(item: Any) -> List[Any]:
    """What it holds in the memory of a built-in class, or its attributes."""
    if issubclass(type(item), dict):
        return list(dict.values(item))
    for base in (list, tuple, set):
        if issubclass(type(item), base):
            return list(base.__iter__(item))
    return [attributes_of(item)]


def _shapes(model: torch.nn.Module) -> List[Tuple[int, ...]]:
    return [tuple(item.shape) for item in model.parameters()]


def _storages(job: JobView) -> Set[int]:
    """Ids of parameters, buffers, gradients and optimizer states: lists of these are not copies."""
    tensors: List[Any] = [*job.gradients()]
    for model in job.models:
        tensors += [*model.parameters(), *model.buffers()]
    for optimizer in job.optimizers:
        for group in optimizer.param_groups:
            tensors += group["params"]
        for state in list(optimizer.state.values()):
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    tensors = [item for item in tensors if isinstance(item, torch.Tensor)]
    tensors += [item.grad for item in tensors if item.grad is not None]
    return {
        item.data_ptr() for item in tensors if isinstance(item, torch.Tensor) and not item.is_sparse
    }


def _tensors(container: Any) -> List[torch.Tensor]:
    if issubclass(type(container), torch.nn.Module):
        return list(filter(_is_plain, parameters_of(container)))
    is_dict = issubclass(type(container), dict)
    if (dict.__len__(container) if is_dict else list.__len__(container)) > MOST_TENSORS:
        return []
    values = iter(dict.values(container)) if is_dict else list.__iter__(container)
    first = next(values, None)
    if not _is_plain(first):
        return []
    return [first, *filter(_is_plain, values)]


def _is_plain(item: Any) -> bool:
    return type(item) in PLAIN


def _value(tensors: List[torch.Tensor]) -> float:
    return sum(float(item.detach().double().sum()) for item in tensors if item.is_floating_point())


def _is_near(tensors: List[torch.Tensor], weights: List[torch.Tensor]) -> bool:
    """Are they weights with about these values?"""
    distance = norm = 0.0
    candidates = iter(tensors)
    for weight in weights:
        match = next((item for item in candidates if item.shape == weight.shape), None)
        if match is None:
            return False
        distance += float(
            (match.detach().double().cpu() - weight.detach().double().cpu()).square().sum()
        )
        norm += float(weight.detach().double().square().sum())
    return distance < NEAR * norm


def _named(container: Any) -> str:
    if issubclass(type(container), torch.nn.Module):
        return type(container).__name__
    return "a list of tensors" if issubclass(type(container), list) else "a dictionary of tensors"


def _is_copy(
    tensors: List[torch.Tensor], shapes: Sequence[List[Tuple[int, ...]]], storages: Set[int]
) -> bool:
    """Do they hold weights as a model has them, in their own memory?"""
    if not tensors or all(len(tensors) < len(shape_list) for shape_list in shapes):
        return False
    plain = [
        item for item in tensors if item.is_floating_point() and not item.is_sparse and item.numel()
    ]
    if any(item.data_ptr() in storages for item in plain):
        return False
    here = [tuple(item.shape) for item in plain]
    return any(len(shape_list) > 0 and _is_within(shape_list, here) for shape_list in shapes)


def _is_within(shapes: List[Tuple[int, ...]], here: List[Tuple[int, ...]]) -> bool:
    """Do these shapes come in this order, perhaps with others (buffers) in between?"""
    candidates = iter(here)
    return all(any(shape == candidate for candidate in candidates) for shape in shapes)
