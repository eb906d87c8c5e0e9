"""torch's own clip_grad_norm_() where a step only accumulates: of zeros that the library has left it finds the norm at once.

A loop that accumulates by hand does not call it there, so all of it is overhead. A script that has got hold of the function
before the job was prepared calls that one, with the same result.
"""

import functools
import weakref
from typing import Any, Iterable, List, Optional, Protocol

import torch
from torch.nn.utils import clip_grad

from .reducing import Parameter


class Owner(Protocol):
    """Who knows what is in `p.grad`. Held weakly."""

    def has_left_zero(self, parameters: List[Parameter]) -> bool:
        """Is all that is there a zero that the library has left, and that nobody has changed?"""


_owners: List["weakref.ref[Owner]"] = []


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
            parameters = list(parameters)
            if float(norm_type) > 0.0 and _is_zero(parameters):
                return _zero_of(parameters)
        result: torch.Tensor = plain(parameters, max_norm, norm_type, *arguments, **named)
        return result

    return clip_grad_norm_


def _is_zero(parameters: List[Parameter]) -> bool:
    if torch._C._len_torch_dispatch_stack():  # somebody wants to see all that is computed
        return False
    owners = [owner for owner in (each() for each in _owners) if owner is not None]
    return any(owner.has_left_zero(parameters) for owner in owners)


def _zero_of(parameters: Iterable[Parameter]) -> torch.Tensor:
    """As torch gives it: of the kind of the first gradient."""
    first: Optional[torch.Tensor] = next((item.grad for item in parameters if item.grad is not None), None)
    return torch.tensor(0.0) if first is None else torch.zeros((), dtype=first.dtype, device=first.device)
