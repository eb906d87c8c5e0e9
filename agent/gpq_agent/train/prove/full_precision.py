"""Only for `gpq check`: computes everything in full precision, with reproducible kernels. It tests
the loop, not the precision.

In half precision and in TF32, the parts of a batch are rounded differently from the whole, by more
than an error of the loop may cause. A script that fails in full precision runs as it is.
"""

import functools
import os
import warnings
from operator import attrgetter
from typing import Any, Callable, List

import torch

from gpq_agent.train import internals

# The settings in torch.backends with which a script chooses the precision of single precision, by
# version.
PLACES = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
FULL = ("ieee", "none")
HALF = (torch.bfloat16, torch.float16)
WARNINGS = (
    ".*does not have a deterministic implementation",
    ".*not deterministic because it uses CuBLAS",
)


class FullPrecision:
    """One per process, permanent. `epsilon`: of the coarsest half type that autocast used."""

    def __init__(self, exact: bool = True) -> None:
        """Without `exact`, autocast and TF32 stay as the script sets them."""
        self._exact = exact
        self._autocast = not exact  # as the script sets it
        self.epsilon = 0.0
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # otherwise cuBLAS is not reproducible
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        for message in WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        self._around_autocast()
        self.renew()

    def renew(self) -> None:
        """Whatever the script has set since."""
        if self._exact and _is_reduced():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names that some versions no longer accept
                torch.set_float32_matmul_precision("highest")
                torch.backends.cuda.matmul.allow_tf32 = False
                torch.backends.cudnn.allow_tf32 = False
                for place in _places():
                    place.fp32_precision = "ieee"
        torch.backends.cudnn.benchmark = False
        torch.set_deterministic_debug_mode("warn")

    def give_up(self) -> None:
        """Weights are in half precision, so autocast stays as the script sets it. Without it the
        types would not match."""
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
