"""The loss curve: the mean of the values of `job.log(loss=...)` since the last report.

Adding a value waits for no device.
"""

import math
from typing import Any, Dict, Optional

import torch

from gpq_agent import wire

METRIC = "loss"  # the only name that makes a curve


class LossWindow:
    """Sums on the device of each loss, so that only `close` must wait for it."""

    def __init__(self) -> None:
        self._sums: Dict[Optional[torch.device], Any] = {}  # None: plain numbers
        self._count = 0
        self._base_steps = 0.0

    def add(self, value: Any, base_steps: float) -> None:
        """One loss, a float or a tensor of one element, logged at `base_steps` of progress."""
        device = None
        if isinstance(value, torch.Tensor):
            device, value = value.device, value.detach().reshape(()).float()
        # Never in place, because the tensor belongs to the script.
        self._sums[device] = self._sums.get(device, 0.0) + value
        self._count += 1
        self._base_steps += base_steps

    def close(self) -> Optional[wire.Loss]:
        """The mean, at the mean progress. Starts a new window.

        None if nothing was logged, or if something was not finite.
        """
        count, progress = self._count, self._base_steps
        total = sum(float(part) for part in self._sums.values())
        self._sums, self._count, self._base_steps = {}, 0, 0.0
        if not count or not math.isfinite(total):
            return None
        return wire.Loss(round(progress / count, 3), total / count)
