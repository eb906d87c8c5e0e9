"""Lightning: `Trainer(**gpq.lightning(), max_epochs=3)`.

What Lightning takes for a batch is a whole optimizer step of gpq, so its counters, schedules and
checks are the same on any number of GPUs. A strategy does it. Lightning prepares the last
micro-batch of a step. The earlier ones run just before it, in the call of the optimizer.

Lightning's own restart repeats hooks and counts, so gpq does not use it. A new attempt gets the
counters as they were, in the place where the old one stopped.
"""

import importlib
import math
from typing import Any, Dict, Iterator, List, Optional

import torch

from gpq_agent.train.frameworks import lightning_trainer
from gpq_agent.train.frameworks.dataloaders import intended_gpus, loader_arguments, refusal
from gpq_agent.train.frameworks.lightning_trainer import NAME, Counters, pl
from gpq_agent.train.frameworks.versions import is_tested
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.loader import Fetcher
from gpq_agent.train.loop.setup import make_training

_strategies: Any = importlib.import_module(pl.__name__ + ".strategies")
_environments: Any = importlib.import_module(pl.__name__ + ".plugins.environments")


def trainer_arguments(seed: Optional[int], ddp: Dict[str, Any], **options: Any) -> Dict[str, Any]:
    """What `gpq.lightning()` returns, with the same arguments."""
    if not is_tested(NAME):
        return {}
    job = init(seed=seed)
    if job.replicas == 1:
        strategy: Any = SingleStrategy(device=job.device)
    else:
        cluster = _environments.TorchElasticEnvironment()
        strategy = DistributedStrategy(
            parallel_devices=[job.device], cluster_environment=cluster, **ddp
        )
    vars(strategy).update(options, job=job)
    accelerator = "gpu" if job.device.type == "cuda" else "cpu"
    # Every replica validates on all examples, so metrics are the same on any number of them.
    where = {"accelerator": accelerator, "devices": 1, "num_nodes": 1}
    return {**where, "strategy": strategy, "use_distributed_sampler": False}


class Steps:
    """The train dataloader as Lightning sees it. An item is the data of a step's last micro-batch.
    `len` is the number of steps in an epoch."""

    def __init__(self, strategy: Any, dataloader: Any, batches: int) -> None:
        """A step has so many `batches` of the dataloader. Raises GpqTrainError."""
        self.dataset, self._strategy = dataloader.dataset, strategy
        arguments = loader_arguments(dataloader, batches, strategy.max_batch_size)
        self._loader = strategy.job.loader(self.dataset, **arguments)

    def __len__(self) -> int:
        return int(self._loader.steps_per_epoch)

    def __iter__(self) -> Iterator[Any]:
        """What is left of an epoch."""
        strategy, fetcher, trial = self._strategy, Fetcher(self._loader), self._loader.trial
        next(strategy.epochs)  # ends the epoch before, too
        strategy.counters.continue_epoch()
        strategy.loop.gate.note_rates()
        step = strategy.loop.next_step()
        while step is not None:
            *strategy.earlier, last = [fetcher.fetch(micro) for micro in step.micros]
            strategy.step = step
            if strategy.max_batch_size is not None and strategy.loop.ends_epoch():
                strategy.counters.end_epoch()
            yield last
            if strategy.step is not None:
                cure = "call optimizer.step(closure=optimizer_closure) in each optimizer_step()"
                raise refusal("a module that skips the optimizer in some batches", cure)
            if not trial.is_over and trial.is_due():
                strategy.try_loss(trial)
            step = strategy.loop.next_step()


class Elastic(_strategies.Strategy):  # type: ignore[misc]
    """Where Lightning meets the loop of gpq, with one or several replicas.

    step: fetched, but not made yet. earlier: the data of its micro-batches without the last.
    is_begun: a step was made.
    """

    gpus: Optional[int]  # as in gpq.lightning()
    max_batch_size: Optional[int]
    batch_norm: Optional[int]
    loop: Any = None
    step: Any = None
    is_begun = False
    earlier: List[Any]
    _data: Any = None  # of the current micro-batch, unless Lightning has it
    _steps: Optional[Steps] = None
    _layer_sync: Any = None  # the Trainer sets it where there is one

    def setup_environment(self) -> None:
        super().setup_environment()
        trainer = self.lightning_module.trainer
        if trainer.state.fn != "fit":
            return
        lightning_trainer.refuse(trainer)
        if trainer.fast_dev_run:
            self.max_batch_size = None
        if self.max_batch_size is not None:
            lightning_trainer.refuse_counts(trainer)
        lightning_trainer.ignore_checkpoint_path(trainer, self.job)
        if self.job.checkpoint_dir:  # gpq has a handler of its own
            trainer._signal_connector.register_signal_handlers = lambda: None
        if self.job.resumed:
            trainer.num_sanity_val_steps = 0
        lightning_trainer.keep_logs(trainer, self.job)

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self.lightning_module.trainer
        if trainer.state.fn != "fit" or not trainer.training:
            return dataloader
        if self._steps is not None or not isinstance(dataloader, torch.utils.data.DataLoader):
            raise refusal(
                "a second fit(), or several train dataloaders", "use one torch DataLoader"
            )
        self._accumulated, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        runtime, gpus = self.job._engine.runtime, intended_gpus(self.job, self.gpus, "lightning")
        self._steps = Steps(self, dataloader, self._accumulated * gpus)
        if self._accumulated > 1:
            if self.batch_norm is None:
                lightning_trainer.refuse_batch_norm(trainer)
            lightning_trainer.count_in_steps(trainer, self._accumulated)
            order: Any = dataloader.sampler
            rest = len(order) % (dataloader.batch_size * self._accumulated * gpus)
            if rest:  # Lightning alone divides by accumulate_grad_batches there too
                end = "is left out" if dataloader.drop_last else "takes the mean over them"
                runtime.notice("the last step of an epoch has {} examples and {}".format(rest, end))
        return self._steps

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn == "fit" and self.batch_norm is not None:
            if self._layer_sync is not None:
                raise refusal("sync_batchnorm and batch_norm=", "leave one out")
            self.job._engine.norms.convert(self.model, self.batch_norm)
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        trainer.fit_loop.setup_data()
        if trainer.train_dataloader is not self._steps:
            raise refusal("a collection of dataloaders", "use one torch DataLoader")
        if isinstance(self.optimizers[0], torch.optim.LBFGS):
            raise refusal("LBFGS", "use an optimizer that needs no closure")
        for config in self.lr_scheduler_configs:
            if config.interval == "step":  # Lightning alone counts batches
                config.frequency //= math.gcd(config.frequency, self._accumulated)
        if self.max_batch_size is not None:
            lightning_trainer.follow_epochs(trainer)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        scaler = getattr(self.precision_plugin, "scaler", None)
        parts = self.model, self.optimizers, schedulers, scaler
        training = make_training(self.job.replicas, *parts, measure=None)
        self.job._engine.statistics.adapter = "lightning"
        self.loop = self.job.attach(training._replace(scale_betas=True), watch=True)
        clocks = self.job._engine.runtime.meter.schedules
        for config, clock in zip(self.lr_scheduler_configs, clocks):
            clock.is_between = config.interval == "step"
        self.counters = Counters(trainer, self.job._engine.runtime.notice)
        self.job.state(self.counters, "lightning")
        self.epochs = self.job.epochs(lightning_trainer.epoch_count(trainer))
        if trainer.fit_loop.done:  # an earlier attempt got to the end
            self.on_train_end()

    def optimizer_step(
        self, optimizer: Any, closure: Any, model: Any = None, **options: Any
    ) -> Any:
        """Makes a step. `closure`: forward and backward of a micro-batch."""
        loop, plugin, micros = self.loop, self.precision_plugin, self.step.micros
        module, self._closure = model or self.lightning_module, closure
        if self.max_batch_size is None:
            loop.gate.note_rates()  # the module may set them by its counters, which are right
        for micro, data in zip(micros, self.earlier):
            self._data = data
            loop.begin_micro(micro)
            self._train()
            optimizer.step()  # without effect
            loop.end_micro()
        self._data = None
        loop.begin_micro(micros[-1])
        if getattr(plugin, "scaler", None) is None:  # the plugin would give step() the closure
            result = self._train()
            plugin._after_closure(module, optimizer)
            optimizer.step(**options)
        else:
            result = plugin.optimizer_step(optimizer, model=module, closure=self._train, **options)
        loop.end_micro()
        loop.end_step(applied=loop.applied)
        if not self.is_begun:
            self.is_begun = True
            lightning_trainer.tell_forgetful(module.trainer, self.job)
        self.step, self.earlier = None, []
        self.counters.tell_means()
        return result

    def _train(self) -> Any:
        """Forward and backward. Raises GpqTrainError if the module leaves the batch out."""
        loss = self._closure()
        if loss is None:
            raise refusal("a training_step() that skips a batch", "skip it in the data set")
        self.job.log(loss=loss)
        return loss

    def training_step(self, batch: Any, *rest: Any) -> Any:
        module = self.lightning_module
        if self._data is not None:
            batch = self.precision_plugin.convert_input(self._data)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = self.batch_to_device(batch, dataloader_idx=0)
        results = module.trainer._results
        results.batch, results.batch_size = batch, None  # what self.log() weighs a mean by
        return super().training_step(batch, *rest)

    def try_loss(self, trial: Any) -> None:
        """Computes a few examples twice, which trains and logs nothing."""
        epoch_loop = self.lightning_module.trainer.fit_loop.epoch_loop
        results, epoch_loop._results = epoch_loop._results, type(epoch_loop._results)(training=True)
        for data in trial.batches():
            self._data = data
            self._closure()
        epoch_loop._results, self._data = results, None

    def on_validation_start(self) -> None:
        self._evaluation = self.job.eval()
        self._evaluation.__enter__()

    def on_validation_end(self) -> None:
        self._evaluation.__exit__(None, None, None)

    def on_train_end(self) -> None:
        trainer = self.lightning_module.trainer
        if trainer.current_epoch < lightning_trainer.epoch_count(
            trainer
        ):  # a callback or the module has ended it
            self.epochs.close()
            self.job.done()
        next(self.epochs, None)


class SingleStrategy(Elastic, _strategies.SingleDeviceStrategy):  # type: ignore[misc]
    """One replica."""


class DistributedStrategy(Elastic, _strategies.DDPStrategy):  # type: ignore[misc]
    """Several replicas, which run already."""

    root_device = property(lambda self: self.job.device)

    def _configure_launcher(self) -> None:
        pass
