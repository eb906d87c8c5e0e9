"""A loop that draws its own batches: gradients and steps are the script's."""

from typing import Any, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.gradients.reducer import Reducer
from gpq_agent.train.noise.noise_scale import NoiseScale
from gpq_agent.train.noise.probe import GradientProbe

from .runtime import Runtime


def trains_outside(models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> bool:
    """Has an optimizer parameters outside the wrapped models? Without `job.loader()`, nothing
    averages their gradients over replicas."""
    if not any(isinstance(model, DistributedDataParallel) for model in models):
        return False
    inside = {id(item) for model in models for item in model.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return any(id(item) not in inside for group in groups for item in group["params"])


class OwnBatches:
    """Replicas may have unequal shares of a batch, so gradients are weighed."""

    def __init__(
        self, runtime: Runtime, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]
    ) -> None:
        self._reducers = []
        wrapped_models = [model for model in models if isinstance(model, DistributedDataParallel)]
        if wrapped_models:
            replicas = runtime.replicas
            probe = GradientProbe(
                optimizers, NoiseScale(1, 0), replicas, wrapped_models[0].process_group
            )
            reducer = Reducer(wrapped_models, probe, runtime.group, replicas)
            reducer.follow()
            self._reducers.append(reducer)

    def begin_step(self) -> None:
        """Collective."""
        self.weigh(1.0)
        for reducer in self._reducers:
            reducer.share_buffers()

    def weigh(self, weight: float) -> None:
        """Set a factor on the gradients of this replica until the next call."""
        for reducer in self._reducers:
            reducer.share.weight = weight
