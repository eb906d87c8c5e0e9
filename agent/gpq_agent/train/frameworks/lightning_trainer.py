"""What gpq refuses of a Lightning Trainer, takes over before the training, and keeps of it."""

import csv
import importlib
import inspect
import math
import os
import sys
from typing import Any, Callable, Dict

from gpq_agent.train.frameworks.dataloaders import is_own, refusal
from gpq_agent.train.internals import BatchNorm

# The package has two names, with classes of their own.
is_old_name = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
NAME = "pytorch_lightning" if is_old_name else "lightning"
pl: Any = importlib.import_module(NAME if is_old_name else "lightning.pytorch")
_call: Any = importlib.import_module(pl.__name__ + ".trainer.call")

FORGETS = (
    "the callback {} starts over at each restart. To keep what it counts, give it state_dict() and "
    "load_state_dict()"
)
# Callbacks that change what a step is, or train by themselves.
SEARCHES = "BatchSizeFinder", "LearningRateFinder"
CALLBACKS = {"GradientAccumulationScheduler", "StochasticWeightAveraging", *SEARCHES}


def refuse(trainer: Any) -> None:
    """Raises GpqTrainError for what would train otherwise on other GPUs."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        raise refusal("manual optimization", "use automatic optimization")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise refusal("training_step(dataloader_iter)", "use training_step(batch, batch_idx)")
    if trainer.reload_dataloaders_every_n_epochs:
        raise refusal("reload_dataloaders_every_n_epochs")
    for name in CALLBACKS.intersection(type(item).__name__ for item in trainer.callbacks):
        raise refusal(name)


def tell_forgetful(trainer: Any, job: Any) -> None:
    """Say which callbacks of the script keep something, but not in a checkpoint."""
    for item in trainer.callbacks:
        names = "state_dict", "on_save_checkpoint"
        is_kept = any(getattr(type(item), name) is not getattr(pl.Callback, name) for name in names)
        is_kept = is_kept or not vars(item).keys() - {"log", "log_dict"}  # Lightning sets those
        if is_own(type(item), "lightning", "pytorch_lightning") and not is_kept:
            job._engine.runtime.notice(FORGETS.format(type(item).__name__))


def ignore_checkpoint_path(trainer: Any, job: Any) -> None:
    """A restart does not load `fit(ckpt_path=...)`, such as "last". The first attempt raises
    GpqTrainError if there is one."""
    connector = trainer._checkpoint_connector
    start = connector.resume_start

    def resume_start(path: Any = None, *rest: Any, **options: Any) -> None:
        is_fit = trainer.state.fn == "fit"
        if is_fit and path and not job.resumed:
            cure = "gpq resumes by itself. To start from weights, load them before fit()"
            raise refusal("fit(ckpt_path=...)", cure)
        start(None if is_fit else path, *rest, **options)

    connector.resume_start = resume_start


def keep_logs(trainer: Any, job: Any) -> None:
    """All attempts log in the folder of the first. Collective."""
    for number, logger in enumerate(trainer.loggers):
        if hasattr(logger, "_version"):
            name = "version of logger {}".format(number)
            logger._version = trainer.strategy.broadcast(job.state(name, logger.version))
        path = os.path.join(logger.log_dir or "", "metrics.csv")
        is_csv = type(logger).__name__ == "CSVLogger"
        if job.resumed and job.rank == 0 and is_csv and os.path.exists(path):
            os.replace(path, path + ".earlier")  # a new CSVLogger deletes it
            writer = logger.experiment
            os.replace(path + ".earlier", path)
            with open(path, newline="") as stream:
                writer.metrics_keys = next(csv.reader(stream), [])


def refuse_counts(trainer: Any) -> None:
    """Raises GpqTrainError for what counts steps, of which a batch that grows makes fewer."""
    usual = {"max_steps": -1, "limit_train_batches": 1.0, "val_check_interval": 1.0}
    for name, value in usual.items():
        if repr(getattr(trainer, name, value)) != repr(value):  # 1 is a step, and 1.0 an epoch
            cure = "leave one of them out, and use max_epochs"
            raise refusal("{} and max_batch_size".format(name), cure)


def follow_epochs(trainer: Any) -> None:
    """Validate at the end of epochs, however many steps they have. Raises GpqTrainError for a
    schedule that follows only some of the steps."""
    if trainer.val_check_batch is not None:  # otherwise it goes by time
        trainer.val_check_batch = math.inf
    for config in trainer.lr_scheduler_configs:
        if config.interval == "step" and config.frequency > 1:
            raise refusal("a schedule's frequency and max_batch_size", "leave one of them out")


def refuse_batch_norm(trainer: Any) -> None:
    """Raises GpqTrainError for batch norm, which would see all batches of a step at once."""
    if any(isinstance(item, BatchNorm) for item in trainer.lightning_module.modules()):
        cure = "write gpq.lightning(batch_norm=32), with the batch size of the script"
        raise refusal("batch norm and accumulate_grad_batches", cure)


def count_in_steps(trainer: Any, batches: int) -> None:
    """What counts batches counts steps of so many from now on. Raises GpqTrainError if it
    cannot."""
    for name in ("limit_train_batches", "val_check_interval"):
        value = getattr(trainer, name, 1.0)  # validation that goes by time has no interval
        if isinstance(value, int) and value % batches == 0:
            setattr(trainer, name, value // batches)
        elif isinstance(value, int) or value != 1.0:
            cure = "use a multiple of accumulate_grad_batches"
            raise refusal("{}={}, in the middle of a step".format(name, value), cure)


def epoch_count(trainer: Any) -> int:
    """How many epochs begin. Raises GpqTrainError if the trainer has no limit."""
    limits = [trainer.max_epochs]
    if trainer.max_steps != -1:
        limits.append(math.ceil(trainer.max_steps / trainer.num_training_batches))
    limits = [limit for limit in limits if limit != -1]
    if not limits:
        raise refusal("no end", "set max_epochs or max_steps")
    return int(min(limits))


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

    def end_epoch(self) -> None:
        """The step that Lightning fetches now is the last one of the epoch."""
        self._fit_loop._data_fetcher.length = 0

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
            "metrics": self._metrics(),
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
            "weights": [name for name, value in hooked.items() if value is weights],
            "hooked": {name: value for name, value in hooked.items() if value is not weights},
        }

    def _metrics(self) -> Dict[str, Any]:
        """Those that the next step does not log again."""
        names = [item.meta.name for item in self._epoch_loop._results.values()]
        logged = {name + end for name in names for end in ("", "_step", "_epoch")}
        metrics = self._trainer._logger_connector._callback_metrics
        return {name: value for name, value in metrics.items() if name not in logged}

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
