"""Lightning: `Trainer(**gpq.lightning(), max_epochs=3)`.

What Lightning takes for a batch is a whole optimizer step of gpq, so its counters, schedules and
checks are the same on any number of GPUs. A strategy does it. Lightning prepares the last
micro-batch of a step. The earlier ones run just before it, in the call of the optimizer.

Lightning's own restart repeats hooks and counts, so gpq does not use it. A new attempt gets the
counters as they were, in the place where the old one stopped.
"""

import importlib
import math
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

from gpq_agent.train.frameworks import lightning_trainer
from gpq_agent.train.frameworks.dataloaders import loader_arguments, refusal
from gpq_agent.train.frameworks.versions import is_tested
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.loader import Fetcher
from gpq_agent.train.loop.setup import make_training

# The package has two names, with classes of their own.
is_old_name = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
NAME = "pytorch_lightning" if is_old_name else "lightning"
pl: Any = importlib.import_module(NAME if is_old_name else "lightning.pytorch")
_strategies: Any = importlib.import_module(pl.__name__ + ".strategies")
_environments: Any = importlib.import_module(pl.__name__ + ".plugins.environments")
_call: Any = importlib.import_module(pl.__name__ + ".trainer.call")


def trainer_arguments(seed: Optional[int], ddp: Dict[str, Any]) -> Dict[str, Any]:
    """What `gpq.lightning()` returns. `ddp`: options of DistributedDataParallel."""
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
    strategy.job = job
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
        self._loader = strategy.job.loader(self.dataset, **loader_arguments(dataloader, batches))

    def __len__(self) -> int:
        return int(self._loader.steps_per_epoch)

    def __iter__(self) -> Iterator[Any]:
        """What is left of an epoch."""
        strategy, fetcher, trial = self._strategy, Fetcher(self._loader), self._loader.trial
        next(strategy.epochs)  # ends the epoch before, too
        strategy.counters.continue_epoch()
        step = strategy.loop.next_step()
        while step is not None:
            *strategy.earlier, last = [fetcher.fetch(micro) for micro in step.micros]
            strategy.step = step
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
    """

    loop: Any = None
    step: Any = None
    earlier: List[Any]
    _data: Any = None  # of the current micro-batch, unless Lightning has it
    _steps: Optional[Steps] = None

    def setup_environment(self) -> None:
        super().setup_environment()
        trainer = self.lightning_module.trainer
        if trainer.state.fn != "fit":
            return
        lightning_trainer.refuse(trainer)
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
        gpus = self.job.state("gpus", 0)  # of the first attempt
        if not gpus:
            gpus = self.job.state("gpus", self.job.replicas)
            if self.job.resumed:
                words = "without an earlier checkpoint, a step has the batches of {} GPUs"
                self.job._engine.runtime.notice(words.format(gpus))
        self._steps = Steps(self, dataloader, self._accumulated * gpus)
        if self._accumulated > 1:
            lightning_trainer.count_in_steps(trainer, self._accumulated)
        return self._steps

    def setup(self, trainer: Any) -> None:
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
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        scaler = getattr(self.precision_plugin, "scaler", None)
        parts = self.model, self.optimizers, schedulers, scaler
        training = make_training(self.job.replicas, *parts, measure=None)
        self.loop = self.job.attach(training, watch=True)
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
        loop.gate.note_rates()  # those that the module set since the last step follow its counters
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


class Counters:
    """A part of checkpoints: where Lightning is, and what its callbacks and hooks keep."""

    def __init__(self, trainer: Any, notice: Callable[[str], None]) -> None:
        self._trainer, self._notice = trainer, notice
        self._fit_loop, self._epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._saved: Dict[str, Any] = {}  # for the epoch in which an earlier attempt stopped
        self._is_rest = False  # no step was made yet of what it left
        self._progress = {
            "batch": self._epoch_loop.batch_progress,
            "step": self._epoch_loop.automatic_optimization.optim_progress.optimizer.step,
            "scheduler": self._epoch_loop.scheduler_progress,
            "validation": self._epoch_loop.val_loop.batch_progress,
        }

    def continue_epoch(self) -> None:
        """Lightning begins an epoch, and has reset what it counts in one."""
        for name, state in self._saved.items():
            self._progress[name].load_state_dict(state)
        self._saved, ready = {}, self._progress["batch"].current.ready
        self._fit_loop._data_fetcher.fetched, self._is_rest = ready, ready > 0

    def tell_means(self) -> None:
        """After a step. What Lightning averages is no part of checkpoints."""
        results = self._epoch_loop._results.values() if self._is_rest else ()
        names = {item.meta.name for item in results if item.meta.on_epoch}
        self._is_rest = False
        if names:
            words = "the mean over this epoch of {} starts again at the restart"
            self._notice(words.format(", ".join(sorted(names))))

    def state_dict(self) -> Dict[str, Any]:
        """Without the weights, which are a part of their own."""
        trainer, module = self._trainer, self._trainer.lightning_module
        weights = module.state_dict()
        hooked = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": pl.__version__,
            "state_dict": weights,
            "callbacks": _call._call_callbacks_state_dict(trainer),
        }
        _call._call_callbacks_on_save_checkpoint(trainer, hooked)
        _call._call_lightning_module_hook(trainer, "on_save_checkpoint", hooked)
        return {
            "progress": {name: item.state_dict() for name, item in self._progress.items()},
            "logged": self._epoch_loop._batches_that_stepped,
            "should_stop": trainer.should_stop,
            "metrics": dict(trainer._logger_connector._callback_metrics),
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
            "weights": [name for name, value in hooked.items() if value is weights],
            "hooked": {name: value for name, value in hooked.items() if value is not weights},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Once, before the training begins."""
        trainer, module = self._trainer, self._trainer.lightning_module
        hooked = {**state["hooked"], **{name: module.state_dict() for name in state["weights"]}}
        for tracker in (self._fit_loop.epoch_progress.total, self._fit_loop.epoch_progress.current):
            tracker.increment_by(hooked["epoch"])
        self._saved = state["progress"]
        for name, item in self._progress.items():
            item.load_state_dict(self._saved[name])
        self._epoch_loop._batches_that_stepped = state["logged"]
        trainer.should_stop = state["should_stop"]
        trainer._logger_connector._callback_metrics.update(state["metrics"])
        if state["datamodule"]:
            trainer.datamodule.load_state_dict(state["datamodule"])
        _call._call_lightning_module_hook(trainer, "on_load_checkpoint", hooked)
        _call._call_callbacks_on_load_checkpoint(trainer, hooked)
        _call._call_callbacks_load_state_dict(trainer, hooked)
