"""torch's own clip_grad_norm_() where a step only accumulates: of zeros that the library has left it finds the norm at once.

A loop that accumulates by hand does not call it there, so all of it is overhead; even a walk through the model for
`model.parameters()`, which is left out: the parameters are those of the latest real step. A script that has got hold of the
function before the job was prepared calls that one, with the same result.
"""

import functools
import inspect
import types
import weakref
from typing import Any, Iterable, List, MutableMapping, Optional, Protocol, Sequence, Tuple

import torch
from torch.nn.utils import clip_grad

from .internals import is_watched
from .reducing import Parameter


class Owner(Protocol):
    """Who knows what is in `p.grad`. Held weakly."""

    def has_left_zero(self, parameters: Sequence[Parameter]) -> bool:
        """Is all that is there a zero that the library has left, and that nobody has changed?"""


_owners: List["weakref.ref[Owner]"] = []
# Of each module what was found there last. Tuples: a list of tensors would look like a copy of weights.
_walked: MutableMapping[torch.nn.Module, Tuple[Parameter, ...]] = weakref.WeakKeyDictionary()


def listen(owner: Owner) -> None:
    """From now on `owner` is asked before gradients are clipped."""
    if not _owners:
        around = _around(clip_grad.clip_grad_norm_)
        for module in (clip_grad, torch.nn.utils):
            module.clip_grad_norm_ = around  # type: ignore[attr-defined]
    _owners[:] = [weakref.ref(owner), *(each for each in _owners if each() is not None)]


def _around(plain: Any) -> Any:
    @functools.wraps(plain)
    def clip_grad_norm_(
        parameters: Any, max_norm: float, norm_type: float = 2.0, *arguments: Any, **named: Any
    ) -> torch.Tensor:
        if not isinstance(parameters, torch.Tensor):
            usual = float(norm_type) > 0.0
            module = _walks(parameters)
            known = _walked.get(module, ()) if module is not None else ()
            if known and usual and _is_zero(known):
                return _zero_of(known)
            parameters = list(parameters)
            if module is not None:
                _walked[module] = tuple(parameters)
            if usual and _is_zero(parameters):
                return _zero_of(parameters)
        result: torch.Tensor = plain(parameters, max_norm, norm_type, *arguments, **named)
        return result

    return clip_grad_norm_


def _walks(parameters: Any) -> Optional[torch.nn.Module]:
    """The module of which this is `module.parameters()`, nothing taken from it yet; None: it is something else."""
    if type(parameters) is not types.GeneratorType or parameters.gi_code is not torch.nn.Module.parameters.__code__:
        return None
    frame = parameters.gi_frame
    if frame is None or inspect.getgeneratorstate(parameters) != inspect.GEN_CREATED:
        return None
    module: torch.nn.Module = frame.f_locals["self"]
    return module if frame.f_locals["recurse"] is True else None


def _is_zero(parameters: Sequence[Parameter]) -> bool:
    if is_watched():  # somebody wants to see all that is computed
        return False
    owners = [owner for owner in (each() for each in _owners) if owner is not None]
    return any(owner.has_left_zero(parameters) for owner in owners)


def _zero_of(parameters: Iterable[Parameter]) -> torch.Tensor:
    """As torch gives it: of the kind of the first gradient."""
    first: Optional[torch.Tensor] = next((item.grad for item in parameters if item.grad is not None), None)
    return torch.tensor(0.0) if first is None else torch.zeros((), dtype=first.dtype, device=first.device)
