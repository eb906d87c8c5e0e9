"""What `job.prepare()` makes of models and optimizers, with or without `job.loader()`."""

import functools
from typing import Any, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.gradients.accumulator import Accumulator
from gpq_agent.train.gradients.lr_rules import LrAdjuster, Rule
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.gradients.reducer import Reducer
from gpq_agent.train.loop.runtime import Runtime
from gpq_agent.train.loop.shape import BatchSource
from gpq_agent.train.process.process_group import finish


class Training(NamedTuple):
    """What the script passed to `job.prepare()`.

    models: as the script calls them. rules: learning-rate rules by optimizer.
    measured: the optimizers on whose parameters gradient noise is measured.
    """

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    schedulers: Sequence[Any]
    rules: Sequence[Rule]
    scaler: Any
    measured: Sequence[Any]
    scale_betas: bool


class TrainingSetup(NamedTuple):
    """Exists from `job.prepare()` on."""

    training: Training
    data: BatchSource
    gradients: Accumulator
    probe: GradientProbe
    lr: LrAdjuster
    reducer: Optional[Reducer]  # None for one replica


def set_up(training: Training, data: BatchSource, runtime: Runtime) -> TrainingSetup:
    """Hook into the gradients of the models."""
    replicas = runtime.replicas
    wrapped_models = _wrapped_models(training.models)
    group = wrapped_models[0].process_group if wrapped_models else None
    probe = GradientProbe(training.measured, data.noise, replicas, group)
    probe.arrived = functools.partial(runtime.pulse.reduces, True)
    reducer = Reducer(wrapped_models, probe, runtime.group, replicas) if replicas > 1 else None
    gradients = Accumulator(training.optimizers, probe, reducer)
    lr = LrAdjuster(
        data.limits,
        data.noise,
        runtime.meter,
        training.optimizers,
        training.rules,
        scale_betas=training.scale_betas,
    )
    return TrainingSetup(training, data, gradients, probe, lr, reducer)


def outside(models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> List[Any]:
    """The parameters of the optimizers that no model holds."""
    inside = {item for model in models for item in model.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [item for group in groups for item in group["params"] if item not in inside]


def share_outside(setup: TrainingSetup) -> None:
    """Buffers, and parameters outside the wrapped models, start as on rank 0. Collective."""
    if setup.reducer is not None:
        setup.reducer.share_buffers()
    models = _wrapped_models(setup.training.models)
    if models:
        with torch.no_grad():
            for item in dict.fromkeys(outside(models, setup.training.optimizers)):
                group = models[0].process_group
                finish(dist.broadcast(item.detach(), src=0, group=group, async_op=True))


def _wrapped_models(models: Sequence[torch.nn.Module]) -> List[DistributedDataParallel]:
    return [model for model in models if isinstance(model, DistributedDataParallel)]


class OwnBatches:
    """Of a loop that draws its own batches: gradients and steps are the script's. Replicas may have
    unequal shares of a batch, so gradients are weighed. `trains_outside`: nothing averages the
    gradients of some parameters over replicas."""

    def __init__(
        self, runtime: Runtime, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]
    ) -> None:
        self._reducers = []
        wrapped_models = _wrapped_models(models)
        self.trains_outside = bool(wrapped_models and outside(models, optimizers))
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
