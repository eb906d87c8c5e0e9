"""For `gpq check` alone: all is computed in full precision, by kernels that come to the same again.
On trial is the loop.

In half precision, and in TF32, the parts of a batch are rounded otherwise than the whole, by more
than an error of the loop may come to. A script that fails in full precision is run as it is.
"""

import functools
import os
import warnings
from operator import attrgetter
from typing import Any, Callable, List

import torch

from gpq_agent.train import internals

# Where a version of torch lets a script say in which precision single precision is computed, in
# torch.backends.
PLACES = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
FULL = ("ieee", "none")
HALF = (torch.bfloat16, torch.float16)
WARNINGS = (
    ".*does not have a deterministic implementation",
    ".*not deterministic because it uses CuBLAS",
)


class FullPrecision:
    """One per process, for good. `epsilon`: of the coarsest half type that autocast computed in."""

    def __init__(self, exact: bool = True) -> None:
        """Without `exact`, autocast and TF32 are as the script has them."""
        self._exact = exact
        self._autocast = not exact  # as the script has it
        self.epsilon = 0.0
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # or cuBLAS does not come to the same
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        for message in WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        self._around_autocast()
        self.renew()

    def renew(self) -> None:
        """Whatever the script has set since."""
        if self._exact and _is_reduced():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names that some versions want no more
                torch.set_float32_matmul_precision("highest")
                torch.backends.cuda.matmul.allow_tf32 = False
                torch.backends.cudnn.allow_tf32 = False
                for place in _places():
                    place.fp32_precision = "ieee"
        torch.backends.cudnn.benchmark = False
        torch.set_deterministic_debug_mode("warn")

    def give_up(self) -> None:
        """Weights are in half precision, so autocast is as the script has it: without it, not all
        would fit together."""
        self._autocast = True

    def _around_autocast(self) -> None:
        plain: Callable[[Any], Any] = torch.amp.autocast_mode.autocast.__enter__

        @functools.wraps(plain)
        def enter(region: Any) -> Any:
            if not self._autocast:
                return internals.enter_without_effect(region, plain)
            result = plain(region)
            self._note(region.device)
            return result

        torch.amp.autocast_mode.autocast.__enter__ = enter  # type: ignore[method-assign]

    def _note(self, device: str) -> None:
        dtype = torch.get_autocast_dtype(device)
        if torch.is_autocast_enabled(device) and dtype in HALF:
            self.epsilon = max(self.epsilon, torch.finfo(dtype).eps)


def _is_reduced() -> bool:
    places = _places()
    if places:
        return any(place.fp32_precision not in FULL for place in places)
    return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)


def _places() -> List[Any]:
    places = []
    for name in PLACES:
        try:
            place = attrgetter(name)(torch.backends)
        except AttributeError:  # an older torch
            continue
        if hasattr(place, "fp32_precision"):
            places.append(place)
    return places
