"""What a script passes to `job.prepare()`: models, optimizers, schedulers and a scaler, checked."""

from typing import Any, List, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.checkpoints.state_parts import unwrap
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.runtime.unsupported import refuse_sharded


class Components(NamedTuple):
    """What trains, as lists in the order of the script."""

    wrappers: List[torch.nn.Module]  # DistributedDataParallel if there is one, else the models
    models: List[torch.nn.Module]  # the script's own models
    optimizers: List[Any]
    schedulers: List[Any]
    scaler: Any  # None without one
    measure: Any  # the optimizer on whose parameters gradient noise is measured, None for all

    @property
    def noise_sources(self) -> List[Any]:
        """The optimizers on whose parameters gradient noise is measured."""
        return self.optimizers if self.measure is None else [self.measure]


def make_components(
    replicas: int,
    model: Any,
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    measure: Any,
) -> Components:
    """The components of a job with this many replicas. Each may be a single object, a list or a
    tuple.

    Raises GpqTrainError for models that are not wrapped for several replicas, for sharded models,
    without an optimizer, and if `measure` is not one of the optimizers.
    """
    models, optimizers = _as_list(model), _as_list(optimizer)
    refuse_sharded(models, optimizers)
    pairs = [unwrap(item) for item in models]
    wrappers = [pair.wrapper for pair in pairs]
    if replicas > 1 and not all(isinstance(item, DistributedDataParallel) for item in wrappers):
        raise GpqTrainError(
            "the model is not wrapped, but there are {} replicas".format(replicas),
            "use job.wrap(model)",
        )
    components = Components(
        wrappers,
        [pair.inner for pair in pairs],
        optimizers,
        _as_list(scheduler),
        scaler,
        measure,
    )
    sources = components.noise_sources
    if not optimizers or not all(
        any(item is candidate for candidate in optimizers) for item in sources
    ):
        raise GpqTrainError(
            "job.prepare() needs an optimizer, and measure= must be one of its optimizers",
        )
    return components


def _as_list(value: Any) -> List[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
