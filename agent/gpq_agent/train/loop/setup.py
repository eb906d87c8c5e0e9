"""What `job.wrap()` makes of a model, and `job.prepare()` of models and optimizers, with or without
`job.loader()`.

gpq refuses models and optimizers whose state is sharded over the replicas, because it can neither
average their gradients nor save them. It recognises them by the names of their types, so it imports
nothing.
"""

import functools
from itertools import chain
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.checkpoints.state_parts import unwrap
from gpq_agent.train.data.batches import Limits
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.accumulator import Accumulator
from gpq_agent.train.gradients.lr_rules import LrAdjuster, Rule, make_rule
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.gradients.probe import GradientProbe
from gpq_agent.train.gradients.reducer import Reducer
from gpq_agent.train.loop.runtime import BatchSource, Runtime
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.process_group import finish

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine

SHARDING: Dict[str, str] = {
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP)",
    "XlaFullyShardedDataParallel": "XlaFullyShardedDataParallel (FSDP)",
    "FSDPModule": "fully_shard (FSDP2)",
    "FSDP": "fully_shard (FSDP2)",  # its name in torch 2.3 and 2.4
    "DeepSpeedEngine": "DeepSpeed",
    "DeepSpeedOptimizer": "DeepSpeed",
    "ZeROOptimizer": "DeepSpeed",
    "ZeroRedundancyOptimizer": "ZeroRedundancyOptimizer",
}
TENSORS = ("DTensor", "ShardedTensor")
WAYS = (
    "run it without gpq's library on N GPUs of one server: gpq submit --gpus N -- torchrun "
    "--nproc-per-node N train.py. Or let gpq resize it through the script's own saves: use "
    "job.should_stop(), job.save_path and job.saved() instead of job.loader(), job.wrap() and "
    "job.prepare()"
)


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
    process_group: Any  # of the models, None for one replica


def set_up(training: Training, data: BatchSource, runtime: Runtime) -> TrainingSetup:
    """Hook into the gradients of the models."""
    replicas = runtime.replicas
    wrapped_models = _wrapped_models(training.models)
    group = wrapped_models[0].process_group if wrapped_models else None
    probe = GradientProbe(training.measured, data.noise, replicas, group)
    probe.arrived = functools.partial(runtime.pulse.reduces, True)
    reducer = Reducer(wrapped_models, probe, runtime.group, replicas) if replicas > 1 else None
    gradients = Accumulator(training.optimizers, probe, reducer)
    lr = LrAdjuster(data.limits, data.noise, runtime.meter, training)
    return TrainingSetup(training, data, gradients, probe, lr, reducer, group)


def outside(models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> List[Any]:
    """The parameters of the optimizers that no model holds, in the order of the groups. Each
    once."""
    inside = {item for model in models for item in model.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    outsiders = (item for group in groups for item in group["params"] if item not in inside)
    return list(dict.fromkeys(outsiders))


def share_outside(setup: TrainingSetup) -> None:
    """Buffers, and parameters outside the wrapped models, start as on rank 0. Collective."""
    if setup.reducer is not None:
        setup.reducer.share_buffers()
    models = _wrapped_models(setup.training.models)
    if models:
        with torch.no_grad():
            for item in outside(models, setup.training.optimizers):
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
        self._reducer: Optional[Reducer] = None
        wrapped_models = _wrapped_models(models)
        self.trains_outside = bool(wrapped_models and outside(models, optimizers))
        if wrapped_models:
            replicas, group = runtime.replicas, wrapped_models[0].process_group
            probe = GradientProbe(optimizers, NoiseScale(1, 0), replicas, group)
            self._reducer = Reducer(wrapped_models, probe, runtime.group, replicas)
            self._reducer.follow()

    def begin_step(self) -> None:
        """Collective."""
        self.weigh(1.0)
        if self._reducer is not None:
            self._reducer.share_buffers()

    def weigh(self, weight: float) -> None:
        """Set a factor on the gradients of this replica until the next call."""
        if self._reducer is not None:
            self._reducer.share.weight = weight


def wrap_model(
    model: torch.nn.Module, device: torch.device, environment: Environment, *, sync_batch_norm: bool
) -> torch.nn.Module:
    """The model on `device`, in DistributedDataParallel if there are several replicas.
    `sync_batch_norm`: batch norm uses the statistics of all replicas. Raises GpqTrainError for that
    without GPUs, and for a sharded model."""
    refuse_sharded(model)
    model = model.to(device)
    on_gpu = device.type == "cuda"
    if sync_batch_norm:
        # Under gpq raise at once, not at the first restart on several CPU slots.
        if not on_gpu and (environment.replicas > 1 or environment.run_dir):
            problem = "sync_batch_norm=True needs GPUs"
            raise GpqTrainError(problem, "leave it out, or use layer or group norm")
        convert = torch.nn.SyncBatchNorm.convert_sync_batchnorm
        model = convert(model)  # type: ignore[no-untyped-call]
    if environment.replicas == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)


def make_training(
    replicas: int, model: Any, optimizer: Any, scheduler: Any, scaler: Any, measure: Any
) -> Training:
    """What trains, without what follows the batch size. Models, optimizers and schedulers may be
    single objects, lists or tuples.

    Raises GpqTrainError for models that are not wrapped for several replicas, that are sharded, or
    whose state_dict() the script has replaced. Also without an optimizer, and if `measure` is not
    one of the optimizers.
    """
    models, optimizers = _as_list(model), _as_list(optimizer)
    refuse_sharded(models, optimizers)
    wrappers = [unwrap(item).wrapper for item in models]
    if replicas > 1 and not all(isinstance(item, DistributedDataParallel) for item in wrappers):
        words = "the model is not wrapped, but there are {} replicas".format(replicas)
        raise GpqTrainError(words, "use job.wrap(model)")
    for item in models:
        if "state_dict" in vars(unwrap(item).inner):
            problem = (
                "the script has replaced state_dict() of the model, so checkpoints lack weights"
            )
            raise GpqTrainError(
                problem, "leave that out, and choose what to save after the training"
            )
    measured = optimizers if measure is None else [measure]
    own_ids = {id(item) for item in optimizers}
    if not optimizers or not all(id(item) in own_ids for item in measured):
        problem = "job.prepare() needs an optimizer, and measure= must be one of its optimizers"
        raise GpqTrainError(problem)
    return Training(wrappers, optimizers, _as_list(scheduler), (), scaler, measured, False)


def make_rules(
    engine: "Engine", optimizers: Sequence[Any], limits: Limits, rule: str, warmup_steps: float
) -> List[Rule]:
    """The learning-rate rule of each optimizer, under the names of job.prepare(). Raises
    GpqTrainError for a rule that does not fit an optimizer."""
    try:
        rules = [make_rule(rule, item, limits.base_batch, warmup_steps) for item in optimizers]
    except ValueError as error:
        raise GpqTrainError(str(error)) from None
    for item in rules:
        if item.notice and not limits.fixed:
            engine.runtime.notice(item.notice)
    return rules


def refuse_sharded(*parts: Any) -> None:
    """Raises GpqTrainError for a sharded model or optimizer, or one in a list. Also with one
    replica, because it would only fail later with several."""
    words = "gpq cannot resize or checkpoint a model or optimizer sharded by {}"
    for member in chain.from_iterable(map(_as_list, parts)):
        sharding = _sharding(member)
        if sharding:
            raise GpqTrainError(words.format(sharding), WAYS)


def _sharding(part: Any) -> str:
    """What shards it, or ""."""
    modules = part.modules() if hasattr(part, "modules") else [part]
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ in SHARDING:
                return SHARDING[kind.__name__]
    groups = getattr(part, "param_groups", None) or []
    of_groups = [parameter for group in groups for parameter in group["params"]]
    parameters = part.parameters() if hasattr(part, "parameters") else of_groups
    for parameter in parameters:
        # A parameter may hold such a tensor as its data.
        for tensor in (parameter, getattr(parameter, "data", None)):
            if any(kind.__name__ in TENSORS for kind in type(tensor).__mro__):
                return "a {} (tensor or sequence parallelism, FSDP2)".format(type(tensor).__name__)
    return ""


def _as_list(value: Any) -> List[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
