"""For `gpq check` alone: takes out of a run what may depend on its shape: dropout, and the luck of augmentation.

Both are right under gpq in the way that they are right under DistributedDataParallel, but no two shapes draw the same.
"""

import contextlib
import functools
import random
import sys
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from .sampler import GlobalSampler, stable_seed

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ATTENTION = "scaled_dot_product_attention"


def without_dropout() -> None:
    """Every dropout of torch.nn.functional, and so of its modules, lets all through, in this process for good."""
    for name in DROPOUTS:
        setattr(functional, name, _through(getattr(functional, name)))
    attention: Callable[..., Any] = getattr(functional, ATTENTION)

    @functools.wraps(attention)
    def whole(
        query: Any, key: Any, value: Any, mask: Any = None, dropout_p: float = 0.0, *rest: Any, **more: Any
    ) -> Any:
        if "attn_mask" in more:
            mask = more.pop("attn_mask")
        return attention(query, key, value, mask, 0.0, *rest, **more)

    setattr(functional, ATTENTION, whole)


def _through(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def nothing(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return input

    return nothing


def still(model: torch.nn.Module) -> None:
    """The dropout that is not in torch.nn.functional: of recurrent modules."""
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0


def generators() -> List[Any]:
    """The states of all generators that a script may draw from."""
    numpy = sys.modules.get("numpy")
    states: List[Any] = [torch.get_rng_state(), random.getstate()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    if numpy is not None:
        states.append(numpy.random.get_state()[1:])
    return states


def moved(before: List[Any], after: List[Any]) -> bool:
    """Was a random number drawn between the two?"""
    return len(before) != len(after) or not all(_same(one, other) for one, other in zip(before, after))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


@contextlib.contextmanager
def seeded(value: int) -> Iterator[None]:
    """All generators of this process begin at `value` inside, and are as they were after it."""
    numpy = sys.modules.get("numpy")
    kept = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None
    torch.default_generator.manual_seed(value)
    random.seed(value)
    if numpy is not None:
        numpy.random.seed(value % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        if numpy is not None and kept[2] is not None:
            numpy.random.set_state(kept[2])


class SeededData(Dataset):  # type: ignore[type-arg]
    """The script's data set, asked for (epoch, index): what it draws depends on these two alone, also in a worker."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, place: Tuple[int, int]) -> Any:
        epoch, index = place
        with seeded(stable_seed(epoch, index)):
            return self._data[index]

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        # Workers ask their data set for the script's own attributes; not for __getitems__, which knows no epoch.
        if name.startswith("__") or name == "_data":
            raise AttributeError(name)
        return getattr(self._data, name)


class Placed:
    """A batch sampler that says of which epoch the examples are; `reverse`: in each batch the last first; `rotate`: its
    second half first."""

    def __init__(self, sampler: GlobalSampler, reverse: bool, rotate: bool = False) -> None:
        self._sampler = sampler
        self._reverse = reverse
        self._rotate = rotate

    def __iter__(self) -> Iterator[List[Tuple[int, int]]]:
        epoch = self._sampler.cursor.epoch
        for indices in self._sampler:
            places = [(epoch, index) for index in indices]
            half = len(places) // 2 if self._rotate else 0
            places = places[half:] + places[:half]
            yield places[::-1] if self._reverse else places


def copies(model: torch.nn.Module, known: Dict[int, Any]) -> List[torch.nn.Module]:
    """Modules of this process that look like copies of the model and that nobody is known to keep."""
    import gc

    averaged = torch.optim.swa_utils.AveragedModel
    own = {id(module) for part in known.values() for module in part.modules()} | {id(each) for each in model.modules()}
    kinds = (averaged, type(model))
    found = [each for each in gc.get_objects() if type(each) in kinds and id(each) not in own]
    inner = {id(module) for each in found for module in each.modules() if module is not each}
    return [each for each in found if id(each) not in inner]
