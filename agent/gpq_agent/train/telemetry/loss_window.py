"""The loss curve: the mean of what `job.log(loss=...)` was given since the last report.

Adding waits for no device.
"""

import math
from typing import Any, Dict, Optional

import torch

from gpq_agent import wire

METRIC = "loss"  # the one name that makes a curve


class LossWindow:
    """Sums on the device where each loss lies, so that only `close` has to wait for it."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[torch.device], Any] = {}  # None: plain numbers
        self._count = 0
        self._base_steps = 0.0

    def add(self, value: Any, base_steps: float) -> None:
        """One loss, a float or a tensor of one element, logged at `base_steps` of progress."""
        device = None
        if isinstance(value, torch.Tensor):
            device, value = value.device, value.detach().reshape(()).float()
        # Never in place: the tensor is the script's.
        self._sums[device] = self._sums.get(device, 0.0) + value
        self._count += 1
        self._base_steps += base_steps

    def close(self) -> Optional[wire.Loss]:
        """The mean, at the mean progress. A new window begins.

        None where nothing was logged, or not all of it was finite.
        """
        count, progress = self._count, self._base_steps
        total = sum(float(part) for part in self._sums.values())
        self._sums, self._count, self._base_steps = {}, 0, 0.0
        if not count or not math.isfinite(total):
            return None
        return wire.Loss(round(progress / count, 3), total / count)
