"""Makes an Accelerator elastic: `gpq.accelerate()`.

A script of Accelerate has a hand-written loop, so `job.loader()` drives it, with all that gpq looks
for in such loops. Before each micro-batch it sets `sync_gradients`, which is all that optimizers
and schedulers of Accelerate ask. It prepares the job where epochs begin, after all its parts.
"""

import contextlib
import os
import re
import sys
from typing import Any, ContextManager, Dict, Iterator, Optional

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import gather, pad_across_processes, recursively_apply, send_to_device
from torch.utils.data import RandomSampler

from gpq_agent.train.data.batches import ceil_div
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.frameworks.dataloaders import intended_gpus, loader_arguments, refusal
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.loader import is_called_by_next

WHOLE_MODELS = ("NO", "MULTI_CPU", "MULTI_GPU")  # distributed types
SHARDING = ("FSDP", "DEEPSPEED", "MEGATRON_LM")  # accelerate launch and plugins set ACCELERATE_USE_
LAST = "the last step of an epoch weighs its {} examples as others do. Accelerate alone does not"
DROPPED = "an epoch drops its last {} examples. Accelerate alone trains on those of full batches"
LOOP = "use for batch in loader, and Accelerator(gradient_accumulation_steps=N) to accumulate"
HOOK = (
    "gpq does not call the hooks of save_state(). Give what they save to "
    "accelerator.register_for_checkpointing() or accelerator.prepare()"
)


def adapt(accelerator: Accelerator, gpus: Optional[int], **sizes: Optional[int]) -> Accelerator:
    """Make it elastic in place, see `gpq_agent.train.accelerate`. Raises GpqTrainError."""
    refuse(accelerator)
    LocalSGD.__init__ = refuse_local_sgd
    bases = (ElasticAccelerator, type(accelerator))
    accelerator.__class__ = type("ElasticAccelerator", bases, {})
    accelerator.job = job = init()
    accelerator.processes = intended_gpus(job, gpus, "accelerate")
    accelerator.resumes = job.state("accelerate", False)
    job.state("accelerate", True)
    vars(accelerator).update(sizes, loader=None, trained=[], notices=set())
    return accelerator


def refuse_local_sgd(*args: Any, **options: Any) -> None:
    """In place of LocalSGD's constructor. With one process that does nothing, so its scripts would
    only fail after a resize. Raises GpqTrainError."""
    raise refusal("LocalSGD, whose averages over the processes depend on their number")


def refuse(accelerator: Accelerator) -> None:
    """Raises GpqTrainError for a setting under which a resized job would train something else."""
    kind, ddp = accelerator.distributed_type.value, accelerator.ddp_handler
    on = ("true", "True", "1")
    sharding = [name for name in SHARDING if os.environ.get("ACCELERATE_USE_" + name) in on]
    settings: Dict[str, Any] = {
        "a sharded model ({})".format("".join(sharding)): sharding,
        "the distributed type {}".format(kind): kind not in WHOLE_MODELS,
        "mixed_precision='fp8'": accelerator.mixed_precision == "fp8",
        "a communication hook of DDP": ddp is not None and ddp.comm_hook.value != "no",
        "dispatch_batches=True": accelerator.dispatch_batches,
        "split_batches=True": accelerator.split_batches,
        "sync_with_dataloader=False": not accelerator.gradient_state.sync_with_dataloader,
        "step_scheduler_with_optimizer=False": not accelerator.step_scheduler_with_optimizer,
    }
    for setting, is_set in settings.items():
        if is_set:
            raise refusal(setting)


class ElasticAccelerator(Accelerator):  # type: ignore[misc]
    """An Accelerator whose job gpq may stop and resize.

    job: of `gpq.init()`. resumes: from a checkpoint. processes: that the script is meant for.
    loader: of the training data. trained: the models, optimizers and schedulers as prepared.
    """

    processes: int
    loader: "Optional[ElasticLoader]"

    def epochs(self, count: int) -> Iterator[int]:
        """Yields 0 to count - 1, from the epoch of the checkpoint. Prepare all that trains before.
        Raises GpqTrainError."""
        if self.loader is None:
            raise GpqTrainError("accelerator.prepare() got no training data", "prepare its loader")
        if self.job._engine.loop is None:
            self._attach()
        yield from self.job.epochs(count)

    def _attach(self) -> None:
        """Give the job what trains, and resume."""
        trained = list(dict.fromkeys(self.trained))
        accelerated = [item for item in trained if isinstance(item, AcceleratedOptimizer)]
        schedulers = [item.scheduler for item in trained if isinstance(item, AcceleratedScheduler)]
        optimizers = [item.optimizer for item in accelerated]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        parameters = {item for group in groups for item in group["params"]}
        models = [item for item in trained if isinstance(item, torch.nn.Module)]
        models = [item for item in models if not parameters.isdisjoint(item.parameters())]
        self.job._engine.statistics.adapter = "accelerate"
        self.job.prepare(models, optimizers, schedulers, scaler=self.scaler)
        for item in accelerated:
            item.__setstate__({})  # with a GradScaler it keeps step(), which is another one now
        config = self.project_configuration
        if config.automatic_checkpoint_naming and self.job.resumed:
            # The attempt before may have saved more often than the checkpoint says.
            folder = os.path.join(self.project_dir, "checkpoints")
            names = " ".join(os.listdir(folder)) if os.path.isdir(folder) else ""
            config.iteration = 1 + max(map(int, re.findall(r"checkpoint_(\d+)", names)), default=-1)

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        """The first one has the training data. Raises GpqTrainError."""
        if self.loader is None:
            self.loader = ElasticLoader(self, data_loader)
            return self.loader
        if self.loader.is_in_order and isinstance(data_loader.sampler, RandomSampler):
            problem = "only a later loader that accelerator.prepare() was given is shuffled"
            raise GpqTrainError(problem, "give it the loader of the training data first")
        processes, self.processes = self.processes, self.job.replicas
        try:
            return super().prepare_data_loader(data_loader, *args, **options)
        finally:
            self.processes = processes

    def prepare_model(self, model: Any, *args: Any, **options: Any) -> Any:
        if self.batch_norm is not None:
            self.job._engine.norms.convert(model, self.batch_norm)
        self.trained.append(super().prepare_model(model, *args, **options))
        return self.trained[-1]

    def prepare_optimizer(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        self.trained.append(super().prepare_optimizer(optimizer, *args, **options))
        return self.trained[-1]

    def prepare_scheduler(self, scheduler: Any) -> Any:
        accelerated = super().prepare_scheduler(scheduler)
        self.trained.append(accelerated)
        repeat_steps(scheduler, self.processes)
        accelerated.split_batches = True  # so it makes one call per step
        return accelerated

    def register_for_checkpointing(self, *objects: Any) -> None:
        super().register_for_checkpointing(*objects)
        for item in objects:
            self.job.state(item)

    def load_state(self, *args: Any, **options: Any) -> None:
        if self.resumes and self.job._engine.loop is None:
            self.tell("the job resumes from gpq's checkpoint, so load_state() is left out")
        else:
            super().load_state(*args, **options)

    def skip_first_batches(self, *args: Any, **options: Any) -> None:
        """Raises GpqTrainError."""
        raise refusal("skip_first_batches()", "leave it out, because gpq resumes within the epoch")

    def register_save_state_pre_hook(self, hook: Any) -> Any:
        self.tell(HOOK)
        return super().register_save_state_pre_hook(hook)

    @property
    def num_processes(self) -> int:
        """That the script is meant for, because it computes steps and schedules from it."""
        if self.processes != self.job.replicas:
            words = "accelerator.num_processes stays {}, as schedules need it, on {} GPUs too"
            self.tell(words.format(self.processes, self.job.replicas))
        return self.processes

    @property
    def is_last_process(self) -> bool:
        return bool(self.process_index == self.job.replicas - 1)

    def accumulate(self, *models: Any) -> ContextManager[None]:
        """Does nothing: gpq decides how a step is accumulated, and averages once per step."""
        return contextlib.nullcontext()

    no_sync = accumulate

    def backward(self, loss: Any, **options: Any) -> None:
        """gpq weighs micro-batches, so the loss is not divided by their number."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward(**options)

    def gather(self, tensor: Any) -> Any:
        """In a step of the training, replicas may have unequal numbers of rows."""
        if not self._is_training:
            return super().gather(tensor)
        return recursively_apply(gather_rows, tensor, error_on_other_type=True)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """In a step of the training, without the rows of a replica that repeats others."""
        if use_gather_object or self.loader is None or not self._is_training:
            return super().gather_for_metrics(input_data, use_gather_object)
        most = None if self.loader.counted else 0
        return recursively_apply(gather_rows, input_data, most=most, error_on_other_type=True)

    @property
    def _is_training(self) -> bool:
        """Is the script in a step, and not in a loader of Accelerate's own?"""
        loop, active_loader = self.job._engine.loop, self.gradient_state.active_dataloader
        return loop is not None and loop.in_body and active_loader is self.active_loader

    def tell(self, words: str) -> None:
        """Print a line for the user, once."""
        if words not in self.notices:
            self.notices.add(words)
            self.job._engine.runtime.notice(words)


def gather_rows(tensor: torch.Tensor, most: Optional[int] = None) -> Any:
    """The rows of all replicas. `tensor` has shape (rows, ...), of which the first `most` count. A
    single number is gathered as it is. Collective."""
    if tensor.ndim == 0:
        return gather(tensor)
    counts = gather(torch.tensor([len(tensor[:most])], device=tensor.device)).tolist()
    parts = gather(pad_across_processes(tensor)).chunk(len(counts))
    return torch.cat([part[:count] for part, count in zip(parts, counts)])


def repeat_steps(scheduler: Any, times: int) -> None:
    """Let each step() count `times`, as Accelerate does on so many processes. The class is
    replaced, not the method, because state_dict() holds every attribute."""
    plain = type(scheduler)

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        end = getattr(self, "total_steps", None)  # beyond it OneCycleLR raises
        for _ in range(times):
            if end is None or self.last_epoch < end:
                plain.step(self, *args, **kwargs)

    members = {"step": step, "__module__": plain.__module__}
    scheduler.__class__ = type(plain.__name__, (plain,), members)


class ElasticLoader:
    """Yields micro-batches of gpq. Else it is like the script's own DataLoader. Its length is that
    of Accelerate's loader on the processes that the script is meant for, for schedules.

    is_in_order: the data are not shuffled. counted: as in `job.loader()`.
    """

    def __init__(self, accelerator: ElasticAccelerator, source: Any) -> None:
        """Raises GpqTrainError."""
        if source.batch_size is None:
            raise refusal("a batch_sampler", "use batch_size, and a sampler for your own order")
        processes, steps = accelerator.processes, accelerator.gradient_accumulation_steps
        most, round_size = accelerator.max_batch_size, source.batch_size * processes
        arguments = loader_arguments(source, processes * steps)
        if arguments["generator"] is None:  # a seed of the script may come after gpq.init()
            seeded = torch.Generator().manual_seed(torch.initial_seed())
            arguments["generator"] = getattr(source.sampler, "generator", None) or seeded
        arguments.update(max_batch_size=most, fixed_batch=most is None)
        self.is_in_order = arguments.get("shuffle") is False
        self._source, self._accelerator, self.counted = source, accelerator, 0
        self._device = accelerator.device if accelerator.device_placement else None
        self._loader = accelerator.job.loader(source.dataset, **arguments)
        full_steps, rest = divmod(len(source.sampler), round_size * steps)
        self._length: int = full_steps * steps
        if source.drop_last and rest >= round_size:
            accelerator.tell(DROPPED.format(rest))
        elif rest and not source.drop_last:
            self._length += ceil_div(rest, round_size)
            if steps > 1 or processes > 1:
                accelerator.tell(LAST.format(rest))

    def set_epoch(self, epoch: int) -> None:
        """As in Accelerate. The order of the examples needs no number."""
        if hasattr(self._source.dataset, "set_epoch"):
            self._source.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        epoch = self._accelerator.job._engine.runtime.epoch
        if epoch is None:
            hint = "use for epoch in accelerator.epochs(count), which resumes in the right epoch"
            raise GpqTrainError("a loop over the training data is outside its epochs", hint)
        if is_called_by_next(sys._getframe(1)):
            raise refusal("next() on the loader, which counts batches of one number of GPUs", LOOP)
        self.set_epoch(epoch)
        try:
            yield from map(self._hand_over, self._loader)
        finally:
            self._accelerator.sync_gradients = True

    def _hand_over(self, batch: Any) -> Any:
        accelerator = self._accelerator
        accelerator.sync_gradients = accelerator.job.at_step
        accelerator.active_loader = accelerator.gradient_state.active_dataloader
        self.counted = self._loader.counted
        if self._device is None:
            return batch
        return send_to_device(batch, self._device, non_blocking=accelerator.non_blocking)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
