"""What gpq refuses of a Lightning Trainer, or takes over, before the training begins. Imports
nothing of Lightning."""

import csv
import inspect
import math
import os
from typing import Any

from gpq_agent.train.frameworks.dataloaders import refusal
from gpq_agent.train.internals import BatchNorm

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


def count_in_steps(trainer: Any, batches: int) -> None:
    """What counts batches counts steps of so many from now on. Raises GpqTrainError if it cannot,
    and for batch norm, which would see all batches of a step at once."""
    if any(isinstance(item, BatchNorm) for item in trainer.lightning_module.modules()):
        raise refusal("batch norm and accumulate_grad_batches", "use layer or group norm")
    for name in ("limit_train_batches", "val_check_interval"):
        value = getattr(trainer, name)
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
