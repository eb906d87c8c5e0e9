"""What `job.wrap()` makes of a model, and what `job.prepare()` adds: learning-rate rules, the gate,
and clocks."""

from typing import List, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent.train.data.batches import Limits
from gpq_agent.train.engine.engine import Engine
from gpq_agent.train.engine.loop import TrainingLoop
from gpq_agent.train.engine.setup import Training
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.job.components import Components
from gpq_agent.train.job.resumption import Resumption
from gpq_agent.train.job.training_data import TrainingData
from gpq_agent.train.optim.lr_rules import Rule, make_rule
from gpq_agent.train.optim.wrappers import wrap_scaler, wrap_scheduler
from gpq_agent.train.runtime.environment import Environment
from gpq_agent.train.runtime.unsupported import refuse_sharded


def wrap_model(
    model: torch.nn.Module,
    device: torch.device,
    environment: Environment,
    *,
    sync_batch_norm: bool,
) -> torch.nn.Module:
    """The model on `device`, in DistributedDataParallel if there are several replicas.

    `sync_batch_norm`: batch norm uses the statistics of all replicas. Raises GpqTrainError for that
    without GPUs, and for a sharded model.
    """
    refuse_sharded(model)
    model = model.to(device)
    on_gpu = device.type == "cuda"
    if sync_batch_norm:
        # Under gpq raise at once, not at the first restart on several CPU slots.
        if not on_gpu and (environment.replicas > 1 or environment.run_dir):
            raise GpqTrainError(
                "sync_batch_norm=True needs GPUs",
                "leave it out, or use layer or group norm",
            )
        convert = torch.nn.SyncBatchNorm.convert_sync_batchnorm
        model = convert(model)  # type: ignore[no-untyped-call]
    if environment.replicas == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)


class BatchScaling(NamedTuple):
    """How optimizers follow the batch size, under the names of job.prepare()."""

    rule: str
    warmup_steps: float  # of the script's own schedule
    scale_betas: bool


AUTOMATIC = BatchScaling("auto", 0.0, True)


class Preparation:
    """Attaches what trains to the engine. One per job."""

    def __init__(self, engine: Engine, resumption: Resumption, components: Components) -> None:
        self._engine = engine
        self._resumption = resumption
        self._components = components

    def attach_steps(self) -> None:
        """For a loop without job.loader(), in which nothing follows a batch size. Collective.

        Raises GpqTrainError for a checkpoint that does not fit the script.
        """
        self._resumption.resume(self._components, None)
        self._engine.attach_steps(self._components.wrappers, self._components.optimizers)

    def attach_training(
        self, data: TrainingData, scaling: BatchScaling, *, watch: bool
    ) -> TrainingLoop:
        """For a loop over job.loader(), in which everything follows the batch size. Collective.

        Raises GpqTrainError for a rule that does not fit an optimizer, and for a checkpoint or data
        that do not fit the script.
        """
        engine, components = self._engine, self._components
        rules = self._make_rules(data.limits, scaling)
        self._resumption.resume(components, data)
        training = Training(
            components.wrappers,
            components.optimizers,
            components.schedulers,
            rules,
            components.scaler,
            components.noise_sources,
            scaling.scale_betas,
        )
        loop = engine.attach(training, watch=watch)
        gate = loop.gate
        for scheduler, clock in zip(components.schedulers, engine.runtime.meter.schedules):
            wrap_scheduler(scheduler, clock, loop, gate)
        if components.scaler is not None:
            wrap_scaler(components.scaler, gate)
        if len(components.optimizers) > 1 and not data.limits.fixed:
            engine.runtime.notice(
                "gpq measures gradient noise on {}".format(_noise_words(components))
            )
        return loop

    def _make_rules(self, limits: Limits, scaling: BatchScaling) -> List[Rule]:
        rules: List[Rule] = []
        for optimizer in self._components.optimizers:
            try:
                rule = make_rule(
                    scaling.rule,
                    optimizer,
                    base_batch=limits.base_batch,
                    warmup_steps=scaling.warmup_steps,
                )
            except ValueError as error:
                raise GpqTrainError(str(error)) from None
            if rule.notice and not limits.fixed:
                self._engine.runtime.notice(rule.notice)
            rules.append(rule)
        return rules


def _noise_words(components: Components) -> str:
    if components.measure is None:
        return "all parameters"
    return "the parameters of {}".format(type(components.measure).__name__)
