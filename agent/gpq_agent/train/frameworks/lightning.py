"""Lightning: `Trainer(**gpq.lightning(), max_epochs=3)`.

What Lightning takes for a batch is a whole optimizer step of gpq, so its counters, schedules and
checks say the same on any number of GPUs. A strategy does all of it. Lightning runs the last
micro-batch of a step itself. The earlier ones run just before, in the call of the optimizer.

Lightning's own restart repeats hooks and counts by the state of its loops. It is not used. A new
attempt gets the counters as they were, in the place where the old one stopped.
"""

import csv
import importlib
import math
import os
import sys
from collections import OrderedDict
from typing import Any, Dict, Iterator, Optional

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.frameworks.versions import is_tested
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.loader import OPTIONS, Fetcher
from gpq_agent.train.loop.setup import make_training

# The package has two names. Its classes are not the same ones.
NAME = "lightning"
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    NAME = "pytorch_lightning"
pl: Any = importlib.import_module("lightning.pytorch" if NAME == "lightning" else NAME)
_strategies: Any = importlib.import_module(pl.__name__ + ".strategies")
_plugins: Any = importlib.import_module(pl.__name__ + ".plugins.environments")
_call: Any = importlib.import_module(pl.__name__ + ".trainer.call")

# Callbacks that change what a step is, or train on their own.
CALLBACKS = (
    "GradientAccumulationScheduler", "StochasticWeightAveraging", "BatchSizeFinder",
    "LearningRateFinder",
)  # fmt: skip
WITHOUT = "or leave out gpq.lightning(), and gpq keeps the number of GPUs"


def trainer_arguments(seed: Optional[int], ddp: Dict[str, Any]) -> Dict[str, Any]:
    """What `gpq.lightning()` returns. `ddp`: options of DistributedDataParallel."""
    if not is_tested(NAME):
        return {}
    job = init(seed=seed)
    arguments: Dict[str, Any] = {"device": job.device}
    kind: Any = SingleStrategy
    if job.replicas > 1:
        cluster = _plugins.TorchElasticEnvironment()
        arguments = {"parallel_devices": [job.device], "cluster_environment": cluster, **ddp}
        kind = DistributedStrategy
    strategy = kind(**arguments)
    strategy.job = job
    return {
        "accelerator": "gpu" if job.device.type == "cuda" else "cpu",
        "devices": 1,  # of each replica
        "num_nodes": 1,
        "strategy": strategy,
        # Each replica validates on all examples, so a metric is the same on any number of them.
        "use_distributed_sampler": False,
    }


class Steps:
    """The train dataloader as Lightning sees it: one item for each optimizer step, the data of its
    last micro-batch."""

    def __init__(self, strategy: Any, dataloader: Any, per_step: int) -> None:
        """`per_step`: batches of `dataloader` in a step. Raises GpqTrainError."""
        self.dataset = dataloader.dataset
        self._strategy = strategy
        self.loader = strategy.job.loader(self.dataset, **_loader_arguments(dataloader, per_step))

    def __len__(self) -> int:
        return self.loader.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """The rest of an epoch."""
        strategy, fetcher, trial = self._strategy, Fetcher(self.loader), self.loader.trial
        next(strategy.epochs)  # also ends the epoch before
        strategy.counters.continue_epoch()
        step = strategy.loop.next_step()
        while step is not None:
            *strategy.earlier, last = [fetcher.fetch(micro) for micro in step.micros]
            strategy.step = step
            yield last
            if strategy.step is not None:
                raise GpqTrainError(
                    "the LightningModule did not step its optimizer in a batch",
                    "let optimizer_step() call optimizer.step(closure=optimizer_closure) in each "
                    "batch, and use accumulate_grad_batches",
                )
            if not trial.is_over and trial.is_due():
                strategy.try_loss(trial)
            step = strategy.loop.next_step()


class Elastic:
    """What both strategies share: where Lightning meets the loop of gpq.

    step: fetched, but not made yet. earlier: the data of its micro-batches but the last one.
    """

    job: Any
    loop: Any = None
    step: Any = None
    earlier: Any = ()
    epochs: Any = None
    counters: Any = None
    _steps: Optional[Steps] = None
    _evaluation: Any = None
    # Of Lightning's strategies.
    lightning_module: Any
    precision_plugin: Any
    model: Any
    optimizers: Any
    lr_scheduler_configs: Any
    broadcast: Any
    batch_to_device: Any

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    # -- the start ---------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        super().setup_environment()  # type: ignore[misc]
        trainer = self._trainer
        if trainer.state.fn != "fit":
            return
        if self.loop is not None:
            raise GpqTrainError("trainer.fit() was called twice", "use one fit() in a job")
        self._refuse(trainer)
        if self.job.checkpoint_dir:  # gpq has handlers of its own
            trainer._signal_connector.register_signal_handlers = lambda: None
        if self.job.resumed:
            trainer.num_sanity_val_steps = 0
        keep_logs(self, trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self._trainer
        if not (trainer.state.fn == "fit" and trainer.training):
            return dataloader
        if self._steps is not None or not isinstance(dataloader, DataLoader):
            raise GpqTrainError(
                "gpq resizes a training over one torch DataLoader",
                "give trainer.fit() a single one, " + WITHOUT,
            )
        self._accumulated, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        gpus = self.job.state("gpus", 0)  # of the first attempt
        if not gpus:
            gpus = self.job.state("gpus", self.job.replicas)
        self._steps = Steps(self, dataloader, self._accumulated * gpus)
        _count_in_steps(trainer, self._accumulated)
        return self._steps

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)  # type: ignore[misc]
        if trainer.state.fn != "fit":
            return
        trainer.fit_loop.setup_data()
        if trainer.train_dataloader is not self._steps:
            raise GpqTrainError(
                "gpq resizes a training over one torch DataLoader",
                "give trainer.fit() a single one, " + WITHOUT,
            )
        for config in self.lr_scheduler_configs:
            if config.interval == "step":  # its frequency counts batches
                config.frequency //= math.gcd(config.frequency, self._accumulated)
        scaler = getattr(self.precision_plugin, "scaler", None)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        training = make_training(
            self.job.replicas, self.model, self.optimizers, schedulers, scaler, None
        )
        self.loop = self.job.attach(training, watch=True)
        self.counters = Counters(trainer)
        self.job.state(self.counters, "lightning")
        self.epochs = self.job.epochs(_epochs(trainer))
        if trainer.fit_loop.done:  # it ended in an earlier attempt
            self.on_train_end()

    def _refuse(self, trainer: Any) -> None:
        """Raises GpqTrainError for what cannot be resized."""
        resumed, connector = self.job.resumed, trainer._checkpoint_connector
        start = connector.resume_start

        def resume_start(path: Any = None, *args: Any, **kwargs: Any) -> None:
            if trainer.state.fn != "fit":
                start(path, *args, **kwargs)
            elif path and not resumed:
                raise GpqTrainError(
                    "gpq resumes the training itself, so fit(ckpt_path=...) has no place",
                    "load the weights before fit(), with load_from_checkpoint()",
                )

        connector.resume_start = resume_start
        for callback in trainer.callbacks:
            if type(callback).__name__ in CALLBACKS:
                words = "gpq cannot resize a training with {}"
                hint = "leave it out, " + WITHOUT
                raise GpqTrainError(words.format(type(callback).__name__), hint)
        if trainer.reload_dataloaders_every_n_epochs:
            problem = "gpq cannot resize a training with reload_dataloaders_every_n_epochs"
            raise GpqTrainError(problem, "leave it out, " + WITHOUT)
        if not self.lightning_module.automatic_optimization:
            problem = "gpq cannot resize a training with manual optimization"
            raise GpqTrainError(problem, "use automatic optimization, " + WITHOUT)

    # -- the loop ----------------------------------------------------------------------------------

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """All micro-batches of a step. `closure`: forward and backward for the last one."""
        loop, step, self.step = self.loop, self.step, None
        plugin, model = self.precision_plugin, model or self.lightning_module
        last = self._trainer._results.batch
        loop.gate.note_rates()  # what the module set between two steps follows its counters
        for micro, batch in zip(step.micros, self.earlier):
            earlier_closure = self._closure(batch, optimizer)
            loop.begin_micro(micro)
            _train(earlier_closure)
            optimizer.step()  # has no effect yet
            loop.end_micro()
        self._trainer._logger_connector.on_batch_start(last)
        loop.begin_micro(step.micros[-1])
        if getattr(plugin, "scaler", None) is not None:
            result = plugin.optimizer_step(
                optimizer, model=model, closure=lambda: _train(closure), **kwargs
            )
        else:  # the optimizer must not get the closure, which is more than a forward pass
            result = _train(closure)
            plugin._after_closure(model, optimizer)
            optimizer.step(**kwargs)
        loop.end_micro()
        loop.end_step(applied=loop.applied)
        if isinstance(result, torch.Tensor):
            self.job.log(loss=result)
        return result

    def try_loss(self, trial: Any) -> None:
        """A few examples twice, in batches that train nothing. Nothing of them is logged."""
        epoch_loop = self._trainer.fit_loop.epoch_loop
        results = epoch_loop._results
        epoch_loop._results = type(results)(training=True)
        for batch in trial.batches():
            _train(self._closure(batch, self.optimizers[0]))
        epoch_loop._results = results

    def _closure(self, batch: Any, optimizer: Any) -> Any:
        """Forward and backward as Lightning makes them, for data that it has not seen."""
        trainer, epoch_loop = self._trainer, self._trainer.fit_loop.epoch_loop
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = self.batch_to_device(batch, dataloader_idx=0)
        trainer._logger_connector.on_batch_start(batch)
        arguments = epoch_loop._build_kwargs(OrderedDict(), batch, epoch_loop.batch_idx)
        optimization = epoch_loop.automatic_optimization
        return optimization._make_closure(arguments, optimizer, epoch_loop.batch_idx)

    def on_validation_start(self) -> None:
        self._evaluation = self.job.eval()
        self._evaluation.__enter__()

    def on_validation_end(self) -> None:
        self._evaluation.__exit__(None, None, None)

    def on_train_end(self) -> None:
        if self._trainer.current_epoch >= _epochs(self._trainer):
            next(self.epochs, None)
        else:  # by the module or a callback
            self.epochs.close()
            self.job.done()


class SingleStrategy(Elastic, _strategies.SingleDeviceStrategy):  # type: ignore[misc]
    """One replica."""


class DistributedStrategy(Elastic, _strategies.DDPStrategy):  # type: ignore[misc]
    """Several replicas. gpq or torchrun has started them."""

    def _configure_launcher(self) -> None:
        pass

    @property
    def root_device(self) -> torch.device:
        return self.job.device


class Counters:
    """A part of checkpoints: where Lightning is, and what its callbacks and hooks keep."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._saved: Dict[str, Any] = {}  # of the epoch that an earlier attempt began

    def continue_epoch(self) -> None:
        """Lightning begins an epoch, and has reset what it counts in one."""
        if self._saved:
            self._restore()
            fit_loop = self._trainer.fit_loop
            fit_loop._data_fetcher.fetched = fit_loop.epoch_loop.batch_progress.current.ready
            self._saved = {}

    def state_dict(self) -> Dict[str, Any]:
        """Without the weights, which are a part of their own."""
        trainer = self._trainer
        module, datamodule = trainer.lightning_module, trainer.datamodule
        weights = module.state_dict()
        checkpoint = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": pl.__version__,
            "state_dict": weights,
            "callbacks": _call._call_callbacks_state_dict(trainer),
        }
        _call._call_callbacks_on_save_checkpoint(trainer, checkpoint)
        _call._call_lightning_module_hook(trainer, "on_save_checkpoint", checkpoint)
        names = [name for name, value in checkpoint.items() if value is weights]
        return {
            "progress": {name: item.state_dict() for name, item in self._progress().items()},
            "logged": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "should_stop": trainer.should_stop,
            "metrics": dict(trainer._logger_connector._callback_metrics),
            "datamodule": datamodule.state_dict() if datamodule is not None else {},
            "weights": names,
            "checkpoint": {key: checkpoint[key] for key in checkpoint if key not in names},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Once, before the training begins."""
        trainer, progress = self._trainer, self._trainer.fit_loop.epoch_progress
        module, datamodule = trainer.lightning_module, trainer.datamodule
        checkpoint = dict(state["checkpoint"])
        for tracker in (progress.total, progress.current):
            tracker.increment_by(checkpoint["epoch"])
        self._saved = state["progress"]
        self._restore()
        trainer.fit_loop.epoch_loop._batches_that_stepped = state["logged"]
        trainer.should_stop = state["should_stop"]
        trainer._logger_connector._callback_metrics.update(state["metrics"])
        if datamodule is not None and state["datamodule"]:
            datamodule.load_state_dict(state["datamodule"])
        checkpoint.update({name: module.state_dict() for name in state["weights"]})
        _call._call_lightning_module_hook(trainer, "on_load_checkpoint", checkpoint)
        _call._call_callbacks_on_load_checkpoint(trainer, checkpoint)
        _call._call_callbacks_load_state_dict(trainer, checkpoint)

    def _progress(self) -> Dict[str, Any]:
        epoch_loop = self._trainer.fit_loop.epoch_loop
        return {
            "batch": epoch_loop.batch_progress,
            "step": epoch_loop.automatic_optimization.optim_progress.optimizer.step,
            "scheduler": epoch_loop.scheduler_progress,
            "validation": epoch_loop.val_loop.batch_progress,
        }

    def _restore(self) -> None:
        for name, item in self._progress().items():
            item.load_state_dict(self._saved[name])


def keep_logs(strategy: Any, trainer: Any) -> None:
    """All attempts log in the folder of the first. Collective."""
    job = strategy.job
    for number, logger in enumerate(trainer.loggers):
        if not hasattr(logger, "_version"):
            continue
        name = "version of logger {}".format(number)
        logger._version = strategy.broadcast(job.state(name, logger.version))
        path = os.path.join(logger.log_dir, "metrics.csv")
        is_csv = isinstance(logger, pl.loggers.CSVLogger)
        if job.resumed and is_csv and job.rank == 0 and os.path.exists(path):
            os.replace(path, path + ".earlier")  # its logger deletes the file
            writer = logger.experiment
            os.replace(path + ".earlier", path)
            with open(path, newline="") as stream:
                writer.metrics_keys = next(csv.reader(stream), [])


def _train(closure: Any) -> Any:
    """Forward and backward. Raises GpqTrainError if the module skips the batch."""
    loss = closure()
    if loss is None:
        problem = "training_step() returned None, so it skips a batch on this replica alone"
        raise GpqTrainError(problem, "leave bad examples out of the data set")
    return loss


def _loader_arguments(dataloader: Any, per_step: int) -> Dict[str, Any]:
    """What job.loader() gets for this DataLoader, of whose batches a step has `per_step`. Raises
    GpqTrainError."""
    dataset, sampler, batches = dataloader.dataset, dataloader.sampler, dataloader.batch_sampler
    if isinstance(dataset, IterableDataset):
        problem = "gpq cannot resize a training over an IterableDataset ({})"
        hint = "use a Dataset with __len__ and __getitem__, " + WITHOUT
        raise GpqTrainError(problem.format(type(dataset).__name__), hint)
    if isinstance(sampler, DistributedSampler):
        hint = "leave it out, or use the sampler that a single process would use"
        raise GpqTrainError("the train dataloader has a DistributedSampler", hint)
    arguments = {name: getattr(dataloader, name) for name in OPTIONS if hasattr(dataloader, name)}
    arguments["generator"] = dataloader.generator
    if type(batches) is not BatchSampler:
        if per_step == 1 and batches is not None:
            return {**arguments, "batch_sampler": batches}
        problem = "a step is more than one batch of {}, which gpq cannot put together"
        hint = "use a sampler and batch_size, or start on one GPU without accumulate_grad_batches"
        raise GpqTrainError(problem.format(type(batches).__name__), hint)
    batch = dataloader.batch_size
    arguments.update(
        batch_size=batch * per_step,
        max_local_batch=batch,
        fixed_batch=True,
        drop_last=dataloader.drop_last,
    )
    if type(sampler) is SequentialSampler:
        arguments["shuffle"] = False
    elif type(sampler) is not RandomSampler or sampler.replacement or sampler._num_samples:
        arguments["sampler"] = sampler
    return arguments


def _count_in_steps(trainer: Any, accumulated: int) -> None:
    """What counts batches counts steps of `accumulated` batches from now on. Raises GpqTrainError
    for a number that ends within a step."""
    for name in ("limit_train_batches", "val_check_interval"):
        value = getattr(trainer, name)
        if accumulated == 1 or (value == 1.0 and isinstance(value, float)):
            continue
        if not isinstance(value, int) or value % accumulated:
            words = "{}={} would end within a step of {} batches"
            hint = "use a multiple of accumulate_grad_batches"
            raise GpqTrainError(words.format(name, value, accumulated), hint)
        setattr(trainer, name, value // accumulated)


def _epochs(trainer: Any) -> int:
    """How many begin. Raises GpqTrainError if only something else ends the training."""
    limits = [trainer.max_epochs]
    if trainer.max_steps != -1:
        limits.append(math.ceil(trainer.max_steps / trainer.num_training_batches))
    limits = [limit for limit in limits if limit not in (-1, None)]
    if not limits:
        raise GpqTrainError("the length of the training is unknown", "set max_epochs or max_steps")
    return min(limits)
