"""Hugging Face's Trainer, and trl's trainers that build on it: `gpq.elastic(Trainer)`.

The Trainer gets one item per optimizer step, with the micro-batches of this replica. So what it
counts is the same on any number of GPUs. A micro-batch weighs as many labels as count in it (those
that are not -100), so the loss of a step is their mean, as on one GPU with the whole batch.
"""

import json
import os
import sys
import time
from typing import Any, Dict, List, Mapping, Tuple, Type

import torch
import transformers
from torch.utils.data import BatchSampler
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.frameworks.dataloaders import intended_gpus, is_own
from gpq_agent.train.frameworks.versions import is_tested
from gpq_agent.train.gradients.batch_norm import GroupedLayer
from gpq_agent.train.gradients.progress import ROUNDING
from gpq_agent.train.internals import BatchNorm
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.job import Job
from gpq_agent.train.loop.loader import OPTIONS, Fetcher
from gpq_agent.train.loop.setup import make_training

LIBRARIES = "transformers", "trl"
TRL = {"SFTTrainer", "DPOTrainer"}  # whose loss is a mean over tokens or examples
DRIVEN = (  # methods that a script's own class must leave alone
    "_finalize_training", "_init_training_state", "_inner_training_loop", "_prepare_for_training",
    "_run_epoch", "_track_num_input_tokens", "get_batch_samples", "get_total_train_batch_size",
)  # fmt: skip
STATE = (  # of TrainerState, what changes in training
    "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "global_step",
    "log_history", "num_input_tokens_seen", "total_flos",
)  # fmt: skip
COUNTERS = (  # of the Trainer, and the last one of trl's
    "_globalstep_last_logged", "_total_loss_scalar", "current_flos", "_total_train_tokens",
)  # fmt: skip
FIXED = "gpq: gpq cannot resize {}, because {}. It runs without gpq, on the GPUs that it has now\n"
WITHOUT = "leave it out, or run the script without gpq.elastic(), on a fixed number of GPUs"
FORGETS = "the callback {} starts over at each restart. To keep what it counts, see ExportableState"
OWN_LOSS = (
    "gpq takes your own loss for a mean over labels, or over examples if there are none. If it is "
    "another mean, such as one with class weights, run the script without gpq.elastic()"
)
EVALUATED = (
    "eval_loss depends a little on the number of GPUs, and so may the best checkpoint: the {} "
    "examples of the evaluation are no multiple of per_device_eval_batch_size={}"
)
_jobs: List[Job] = []  # at most one


def elastic(trainer: Type[Any], **options: Any) -> Type[Any]:
    """With gpus, max_batch_size and batch_norm. See `gpq_agent.train.elastic`."""
    if wire.ENV_RUN_DIR not in os.environ and wire.ENV_CHECKPOINT_DIR not in os.environ:
        return trainer
    trl_names = {item.__name__ for item in trainer.__mro__ if item.__module__.startswith("trl.")}
    if not all(map(is_tested, ["transformers", "accelerate"] + ["trl"] * bool(trl_names))):
        return trainer
    plain, reason = transformers.Trainer, ""
    for name in DRIVEN:
        if getattr(trainer, name) is not getattr(plain, name):
            reason = "it has its own {}()".format(name)
    if trl_names and trl_names.isdisjoint(TRL):
        reason = "its batches or its loss depend on the number of GPUs"
    if reason:
        sys.stderr.write(FIXED.format(trainer.__name__, reason))
        return trainer
    if not _jobs:
        _jobs.append(init())
    members = {"gpq_" + name: value for name, value in options.items()}
    members["__module__"] = trainer.__module__
    return type(trainer.__name__, (_ElasticTrainer, trainer), members)


class _Driver(transformers.TrainerCallback):  # type: ignore[misc]
    """Drives gpq's loop for a Trainer. It is the first of the callbacks, so that the others see a
    resumed training, and a part of checkpoints: what the Trainer, trl and callbacks count.

    saved: from the checkpoint. seconds: of earlier attempts. examples: trained on so far.
    flos: of the step on all replicas. loader, loop, epochs, fetcher: from train() on.
    is_begun: a step was made.
    """

    def __init__(self, trainer: Any) -> None:
        self.job, self.engine = _jobs[0], _jobs[0]._engine
        self.saved: Dict[str, Any] = {}
        self.seconds, self.flos, self.examples = 0.0, 0.0, 0
        self.loader = self.loop = self.epochs = self.fetcher = None  # type: Any
        self.is_begun = False
        self._trainer, self._begin = trainer, time.time()

    def state_dict(self) -> Dict[str, Any]:
        """As JSON, because a metric may be a number of numpy."""
        values = vars(self._trainer)
        saved = {
            "state": {name: getattr(self._trainer.state, name) for name in STATE},
            "job_epoch": self.engine.runtime.meter.epoch,
            "callbacks": [item.state()["attributes"] for item in self._exportable()],
            "loss": float(values.get("_tr_loss", 0.0)),
            "trainer": {name: values[name] for name in COUNTERS if name in values},
            "metrics": values["_metrics"] if "_total_train_tokens" in values else {},
            "seconds": self.seconds + time.time() - self._begin,
            "examples": self.examples,
        }
        return {"json": json.dumps(saved, default=float)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.saved = json.loads(state["json"])
        self.seconds, self.examples = self.saved["seconds"], self.saved.get("examples", 0)
        vars(self._trainer.state).update(self.saved["state"])
        for item, attributes in zip(self._exportable(), self.saved["callbacks"]):
            vars(item).update(attributes)

    def _exportable(self) -> List[Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return [item for item in callbacks if isinstance(item, ExportableState)]

    def _tell_forgetful(self) -> None:
        """Say which callbacks of the script keep something, but not in a checkpoint."""
        for item in self._trainer.callback_handler.callbacks[1:]:
            is_kept = not vars(item) or isinstance(item, ExportableState)
            if is_own(type(item), *LIBRARIES) and not is_kept:
                self.engine.runtime.notice(FORGETS.format(type(item).__name__))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, saved = self._trainer, self.saved
        for name, layer in trainer.model.named_modules():
            if isinstance(layer, BatchNorm) and not isinstance(layer, GroupedLayer):
                problem = "batch norm ({}) computes its statistics on each GPU".format(name)
                raise GpqTrainError(problem, "use gpq.elastic(..., batch_norm=32)")
        for item in trainer.callback_handler.callbacks[1:]:
            if isinstance(item, TensorBoardCallback) and item.logging_dir is None:
                name = os.environ.get(wire.ENV_JOB, "gpq")
                item.logging_dir = os.path.join(args.output_dir, "runs", name)
        script_class: Any = type(trainer).__mro__[2]  # without gpq's part
        compute_loss = trainer.compute_loss_func or script_class.compute_loss
        if is_own(compute_loss, *LIBRARIES) or is_own(script_class.training_step, *LIBRARIES):
            self.engine.runtime.notice(OWN_LOSS)
        sets, size = trainer.eval_dataset, args.eval_batch_size
        for dataset in sets.values() if isinstance(sets, dict) else [sets]:
            if args.do_eval and has_length(dataset) and len(dataset) % size:
                self.engine.runtime.notice(EVALUATED.format(len(dataset), size))
        parts = trainer.model_wrapped, trainer.optimizer.optimizer, trainer.lr_scheduler
        training = make_training(self.job.replicas, *parts, trainer.accelerator.scaler, None)
        self.engine.statistics.adapter = "transformers"
        self.loop = self.job.attach(training._replace(scale_betas=True), watch=False)
        trainer.optimizer.__setstate__({})  # it keeps step(), which is another one now
        self.epochs = self.job.epochs(int(state.num_train_epochs))
        self._begin = time.time()
        if saved:
            args.eval_on_start = False
            trainer._initial_global_step = 0  # train_loss is the mean over all attempts
            trainer._tr_loss.fill_(saved["loss"])
            vars(trainer).update(saved["trainer"])
            trainer.current_flos *= self.job.rank == 0
            for mode, values in saved["metrics"].items():
                trainer._metrics[mode].update(values)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        next(self.epochs)
        self.loader.sampler.seek(*self.loader.sampler.cursor)  # perhaps within a pass
        self.fetcher = Fetcher(self.loader)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loop.end_micro()
        self.loop.end_step(applied=self.loop.applied)
        meter = self.engine.runtime.meter
        state.epoch = meter.epoch + meter.position / len(self.loader)
        self.examples += self.loop.step.total
        if meter.epoch + self.loop.is_over >= meter.epochs:  # larger batches are there before
            state.max_steps = state.global_step
        if not self.is_begun:
            self.is_begun = True
            self._tell_forgetful()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            self.job.log(loss=kwargs["logs"]["loss"])


class _ElasticTrainer(transformers.Trainer):  # type: ignore[misc]
    """Comes before the script's own trainer in the method resolution order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gpq = _Driver(self)
        self.callback_handler.callbacks.insert(0, self._gpq)
        own, config = self.args, self.args.accelerator_config
        is_split = self.is_model_parallel or self.is_distributed_loading_by_transformers
        is_cut = own.gradient_accumulation_steps > 1
        # What would train something else on another number of GPUs.
        settings = {
            "FSDP or DeepSpeed": self.is_fsdp_enabled or self.is_deepspeed_enabled,
            "a model split over GPUs": is_split or own.parallelism_config is not None,
            "auto_find_batch_size=True": own.auto_find_batch_size,
            "enable_jit_checkpoint=True": own.enable_jit_checkpoint,
            "average_tokens_across_devices=False": not own.average_tokens_across_devices,
            "dataloader_drop_last=True and accumulation": own.dataloader_drop_last and is_cut,
            "dispatch_batches=True": config.dispatch_batches,
            "split_batches=True": config.split_batches,
            "a LOMO optimizer": own.optim in ("lomo", "adalomo"),
        }
        for name in filter(settings.get, settings):
            raise GpqTrainError("gpq cannot resize a Trainer with {}".format(name), WITHOUT)
        is_whole = own.max_steps <= 0 and own.num_train_epochs % 1 == 0
        if self.gpq_max_batch_size and not (is_whole and own.ddp_find_unused_parameters is False):
            problem = "max_batch_size= needs whole epochs and ddp_find_unused_parameters=False"
            raise GpqTrainError(problem, "set both in the TrainingArguments, and no max_steps")
        for name in ("logging_steps", "eval_steps", "save_steps"):
            if self.gpq_max_batch_size and 0 < (getattr(own, name) or 0) < 1:
                problem = "gpq cannot resize a Trainer with max_batch_size and a share in " + name
                raise GpqTrainError(problem, "give it a number of steps, or use epochs")

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self._gpq.engine.shape.data is not None:
            problem = "gpq can resize only one train() of a script"
            raise GpqTrainError(problem, "train each model in a job of its own")
        if resume_from_checkpoint:
            if not self._gpq.job.resumed:
                problem = "train(resume_from_checkpoint=...) would begin amid another run"
                raise GpqTrainError(problem, "leave it out, because gpq resumes this job itself")
            self._gpq.engine.runtime.notice("gpq resumes itself, without resume_from_checkpoint")
        return super().train(None, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        plain = super().get_train_dataloader()
        if not self.is_in_train:
            return plain
        batches = getattr(plain.batch_sampler, "batch_sampler", plain.batch_sampler)  # unsplit
        if type(batches) is not BatchSampler:
            name = "no length" if batches is None else "a {}".format(type(batches).__name__)
            raise GpqTrainError("gpq cannot resize training on data with {}".format(name), WITHOUT)
        args, job, local = self.args, self._gpq.job, batches.batch_size
        gpus, most = intended_gpus(job, self.gpq_gpus, "elastic"), self.gpq_max_batch_size
        total = local * args.gradient_accumulation_steps * gpus
        # The Trainer gets whole steps, and each replica counts its own labels.
        args.gradient_accumulation_steps, args.average_tokens_across_devices = 1, False
        options = {name: getattr(plain, name) for name in OPTIONS if hasattr(plain, name)}
        self._gpq.loader = job.loader(
            plain.dataset, total, most, local, fixed_batch=most is None, sampler=batches.sampler,
            drop_last=batches.drop_last, **options,
        )  # fmt: skip
        return self._gpq.loader

    def get_total_train_batch_size(self, args: Any) -> Any:
        return self._gpq.loader.sampler.configuration.total

    def _init_training_state(self, *args: Any) -> Tuple[int, int]:
        super()._init_training_state(*args)
        engine = self._gpq.engine
        if self.gpq_batch_norm is not None:
            engine.norms.convert(self.model, self.gpq_batch_norm)
        engine.checkpointer.parts.add("trainer", self._gpq, at_once=True)
        return self._gpq.saved.get("job_epoch", 0), 0

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        driver, meter = self._gpq, self._gpq.engine.runtime.meter
        if meter.epoch + driver.loop.is_over >= meter.epochs:
            next(driver.epochs, None)
        else:  # it has left its loop early
            driver.epochs.close()
            driver.job.done()
        # The Trainer takes the share of the steps that were made.
        samples = driver.examples * self.state.max_steps / max(self.state.global_step, 1)
        return super()._finalize_training(trial, samples, start_time - driver.seconds)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._gpq.job.eval():
            return super().evaluate(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """One step: each micro-batch with its inputs and its number of labels, or None."""
        driver, step = self._gpq, self._gpq.loop.next_step()
        if step is None:  # the epoch began in an earlier attempt, or had larger steps
            return [], None
        micros, batches = step.micros, list(map(driver.fetcher.fetch, step.micros))
        labels = [self._get_num_items_in_batch([batch], torch.device("cpu")) for batch in batches]
        amounts, flos = [], 0.0
        for micro, batch, count in zip(micros, batches, labels):
            if count is None and isinstance(batch, Mapping) and "labels" in batch:
                count = torch.as_tensor(batch["labels"]).ne(-100).sum()
            amount = len(micro.indices) if count is None else float(count)
            amounts.append(amount if micro.indices else 0)
            flos += float(super().floating_point_ops(batch)) if micro.indices else 0.0
        driver.engine.runtime.agreement.call = "job.weigh()"
        sums = driver.engine.runtime.agreement.all_reduce_sum([sum(amounts), flos])
        driver.flos, unit = sums[1], driver.job.replicas / max(sums[0], 1.0)
        errors = [abs(micro.weight - unit * amount) for micro, amount in zip(micros, amounts)]
        if self.gpq_max_batch_size and max(errors) > ROUNDING:
            driver.engine.lose("label-mean")
        is_cut, pairs = driver.job.replicas > 1 or len(micros) > 1, zip(micros, amounts)
        micros = [micro._replace(weight=unit * amount, in_pieces=is_cut) for micro, amount in pairs]
        return [list(zip(micros, batches, labels))], None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """The mean loss of the step over all replicas. Leaves the last micro-batch open, in which
        the Trainer's own optimizer step takes effect."""
        loop, total = self._gpq.loop, torch.zeros((), device=self.args.device)
        for micro, batch, count in inputs:
            if micro.place:
                self.optimizer.optimizer.step()
                loop.end_micro()
            loop.begin_micro(micro)
            items = None if count is None else count.clamp(min=1).to(total.device)
            total += micro.weight * super().training_step(model, batch, items)
        return self.accelerator.reduce(total, "mean")

    def floating_point_ops(self, inputs: Any) -> Any:
        if not isinstance(inputs, list):
            return super().floating_point_ops(inputs)
        return 0.0 if self._gpq.job.rank else self._gpq.flos  # the Trainer sums over replicas

    def _track_num_input_tokens(self, inputs: Any) -> None:
        for micro, batch, _ in inputs:
            counted = {name: item if micro.indices else item[:0] for name, item in batch.items()}
            super()._track_num_input_tokens(counted)
