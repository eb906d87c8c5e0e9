"""`accelerator.job` with a version of Accelerate that gpq's adapter was not tested with."""

import contextlib
from typing import Any, ContextManager

from torch.optim.optimizer import register_optimizer_step_post_hook


class FixedJob:
    """What a script asks of its Job in the training, without gpq: nothing is resized, reported or
    kept. step: how often the first optimizer stepped."""

    def __init__(self, accelerator: Any) -> None:
        self.device, self.rank = accelerator.device, accelerator.process_index
        self.local_rank, self.replicas = accelerator.local_process_index, accelerator.num_processes
        self.step = 0
        self._accelerator, self._optimizer = accelerator, None
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        self.step += optimizer is self._optimizer

    @property
    def at_step(self) -> bool:
        return bool(self._accelerator.sync_gradients)

    def log(self, **values: Any) -> None:
        """Nobody reads them."""

    def eval(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def state(self, part: Any, name: Any = None) -> Any:
        """As without a checkpoint."""
        return name if isinstance(part, str) else part
