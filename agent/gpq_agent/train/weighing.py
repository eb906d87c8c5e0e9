"""Weighs gradients one parameter at a time, before anything adds or averages them: exact for any model, but not free.

For models in which the probe cannot do it: those with a communication hook of their own, or several backward passes a step.
"""

from typing import Any, List, Optional

import torch


class GradientWeight:
    """While `value` is not 1.0, every gradient that a backward pass computes for `model` is multiplied by it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.value = 1.0
        parameters: List[Any] = [item for item in model.parameters() if item.requires_grad]
        for parameter in parameters:
            parameter.register_hook(self._weigh)  # runs before it is accumulated, and before DDP sees it

    def _weigh(self, gradient: torch.Tensor) -> Optional[torch.Tensor]:
        return None if self.value == 1.0 else gradient * self.value
