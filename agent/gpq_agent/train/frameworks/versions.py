"""The versions of each framework that its adapter was tested with, and the names that the adapter
uses although the framework does not document them.

With any other version a name may mean something else. The script then runs as if gpq's adapter
were not there, and a line says so.
"""

import importlib.metadata
import sys
from typing import Dict, NamedTuple, Tuple


class Framework(NamedTuple):
    """`versions`: the first two numbers of each one. `private`: names, as `Class.name`, or as the
    comment at a framework says."""

    versions: Tuple[str, ...]
    private: Tuple[str, ...]


# From the trainer of a fit on, or in `trainer.call`.
LIGHTNING = (
    "_checkpoint_connector.resume_start",
    "_logger_connector._callback_metrics",
    "_results.batch",
    "_results.batch_size",
    "_signal_connector.register_signal_handlers",
    "call._call_callbacks_on_load_checkpoint",
    "call._call_callbacks_load_state_dict",
    "call._call_callbacks_on_save_checkpoint",
    "call._call_callbacks_state_dict",
    "call._call_lightning_module_hook",
    "fit_loop._data_fetcher.fetched",
    "fit_loop._data_fetcher.length",
    "fit_loop.done",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_loop._results.values",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.load_state_dict",
    "fit_loop.epoch_loop.batch_progress.current.ready",
    "fit_loop.epoch_loop.scheduler_progress.load_state_dict",
    "fit_loop.epoch_loop.val_loop.batch_progress.load_state_dict",
    "fit_loop.epoch_progress.current.increment_by",
    "fit_loop.epoch_progress.total.increment_by",
    "fit_loop.setup_data",
    "lightning_module._on_before_batch_transfer",
    "loggers.0._version",
    "loggers.0.experiment.metrics_keys",
    "strategy._configure_launcher",
    "strategy.precision_plugin._after_closure",
)

FRAMEWORKS: Dict[str, Framework] = {
    "accelerate": Framework(("1.14", "1.15"), ()),
    "lightning": Framework(("2.6",), LIGHTNING),
    "pytorch_lightning": Framework(("2.6",), LIGHTNING),
    "transformers": Framework(
        ("5.23", "5.24"),
        (
            "Trainer._finalize_training",
            "Trainer._get_num_items_in_batch",
            "Trainer._init_training_state",
            "Trainer._inner_training_loop",
            "Trainer._prepare_for_training",
            "Trainer._run_epoch",
            "Trainer._track_num_input_tokens",
            "Trainer._globalstep_last_logged",
            "Trainer._initial_global_step",
            "Trainer._total_loss_scalar",
            "Trainer._tr_loss",
        ),
    ),
    "trl": Framework(
        ("1.15", "1.16"),
        (
            "DPOTrainer._metrics",
            "DPOTrainer._total_train_tokens",
            "SFTTrainer._metrics",
            "SFTTrainer._total_train_tokens",
        ),
    ),
}
UNTESTED = (
    "gpq: this gpq was tested with {0} {1}, not with {2}, so {0} runs without it, on the GPUs that "
    "the job has. To let gpq resize the job, install one of these versions\n"
)


def is_tested(name: str) -> bool:
    """Is the installed version one of the tested ones? Otherwise says in one line that gpq's
    adapter does nothing."""
    versions = FRAMEWORKS[name].versions
    version = importlib.metadata.version(name)
    if ".".join(version.split(".")[:2]) in versions:
        return True
    sys.stderr.write(UNTESTED.format(name, " or ".join(versions), version))
    return False
