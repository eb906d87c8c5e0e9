"""Makes an Accelerator elastic: `gpq.accelerate()`.

A script of Accelerate has a hand-written loop, so `job.loader()` drives it, with all that gpq looks
for in such a loop. This file fits the two to each other:

- The training loader is gpq's. Before each micro-batch it sets `sync_gradients`, which is all that
  the optimizers and schedulers of Accelerate ask. `accumulate` and `no_sync` do nothing.
- The batch size and the schedule are those of the job's first attempt: `num_processes` stays.
- The job is prepared where the epochs begin, because a script may call `prepare` several times.
"""

import contextlib
import itertools
import os
import re
from typing import Any, ContextManager, Dict, Iterator, List, Optional

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedType,
    gather,
    pad_across_processes,
    recursively_apply,
    send_to_device,
)
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from gpq_agent.train.data.batches import ceil_div
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from gpq_agent.train.loop.loader import OPTIONS, Loader

WHOLE_MODELS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
SHARDING = ("FSDP", "DEEPSPEED", "MEGATRON_LM")  # accelerate launch and plugins set ACCELERATE_USE_
WITHOUT = "leave out gpq.accelerate() and submit the job with a fixed number of GPUs"
PROCESSES = "accelerate.processes"  # the plain value of the checkpoint with their first number


def adapt(accelerator: Accelerator, job: Job, max_batch_size: Optional[int]) -> Accelerator:
    """Make it elastic in place. Raises GpqTrainError for what gpq cannot resize."""
    refuse(accelerator)
    bases = (ElasticAccelerator, type(accelerator))
    accelerator.__class__ = type("ElasticAccelerator", bases, {})
    accelerator.job, accelerator.training = job, Training(max_batch_size)
    accelerator.processes = job.state(PROCESSES, job.replicas)
    return accelerator


def refuse(accelerator: Accelerator) -> None:
    """Raises GpqTrainError for settings of an Accelerator under which a resized job would train
    something else."""
    environ, ddp = os.environ, accelerator.ddp_handler
    shards = [name for name in SHARDING if environ.get("ACCELERATE_USE_" + name) in ("true", "1")]
    if accelerator.distributed_type not in WHOLE_MODELS:
        shards.append(accelerator.distributed_type.value)
    counts_bodies = not accelerator.step_scheduler_with_optimizer
    problems = [
        (bool(shards), ", ".join(dict.fromkeys(shards)), WITHOUT),
        (bool(accelerator.parallelism_config), "a parallelism_config", WITHOUT),
        (accelerator.mixed_precision == "fp8", "mixed_precision='fp8'", "use bf16"),
        (
            ddp is not None and ddp.comm_hook != DDPCommunicationHookType.NO,
            "a communication hook of DDP",
            "leave it out, because gpq averages the gradients itself",
        ),
        (
            bool(accelerator.dispatch_batches),
            "dispatch_batches=True",
            "leave it out. Each process then reads its own examples",
        ),
        (
            not accelerator.gradient_state.sync_with_dataloader,
            "sync_with_dataloader=False",
            "leave it out, so that a step ends with the epoch",
        ),
        (
            counts_bodies and accelerator.gradient_accumulation_steps > 1,
            "gradient accumulation and step_scheduler_with_optimizer=False",
            "leave one out, so that schedules count optimizer steps",
        ),
    ]
    for is_set, setting, hint in problems:
        if is_set:
            words = "gpq cannot resize a job whose Accelerator has {}"
            raise GpqTrainError(words.format(setting), hint)


class Training:
    """What a script has given to `prepare`, as Accelerate has prepared it.

    loader: of the training data. is_attached: the job has all of it.
    """

    def __init__(self, max_batch_size: Optional[int]) -> None:
        self.max_batch_size = max_batch_size
        self.loader: Optional[ElasticLoader] = None
        self.models: List[Any] = []
        self.optimizers: List[Any] = []
        self.schedulers: List[Any] = []
        self.is_attached = self.has_hooks = self.has_asked = False


class ElasticAccelerator(Accelerator):  # type: ignore[misc]
    """An Accelerator whose job gpq may stop and resize.

    job: what `gpq.init()` returns.
    processes: what `num_processes` says.
    """

    job: Job
    training: Training
    processes: int

    def epochs(self, count: int) -> Iterator[int]:
        """Yields 0 to count - 1, from the epoch of the checkpoint. All that trains must be prepared
        by then. Raises GpqTrainError."""
        if not self.training.is_attached:
            self._attach()
        yield from self.job.epochs(count)

    def _attach(self) -> None:
        """Prepare the job, and resume."""
        training = self.training
        if training.loader is None:
            hint = "give it the DataLoader of the training data, before any other loader"
            raise GpqTrainError("accelerator.prepare() was given no training data", hint)
        optimizers = [item.optimizer for item in training.optimizers]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        trained = {item for group in groups for item in group["params"]}
        models = [item for item in training.models if not trained.isdisjoint(item.parameters())]
        schedulers = [item.scheduler for item in training.schedulers]
        self.job.prepare(models, optimizers, schedulers, scaler=self.scaler)
        for item in training.optimizers:
            item.__setstate__({})  # with a GradScaler it keeps a reference to step(), now another
        training.is_attached = True
        config = self.project_configuration
        if config.automatic_checkpoint_naming and self.job.resumed:
            # The attempt before may have saved more often than its newest checkpoint says.
            folder = os.path.join(self.project_dir, "checkpoints")
            names = os.listdir(folder) if os.path.isdir(folder) else []
            numbers = [int(name) for name in re.findall(r"checkpoint_(\d+)", " ".join(names))]
            config.iteration = max([config.iteration, *(number + 1 for number in numbers)])

    # -- what a script prepares --------------------------------------------------------------------

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        """The first one has the training data. Raises GpqTrainError for one that gpq cannot
        resume."""
        first = self.training.loader
        if first is None:
            self.training.loader = first = ElasticLoader(self, data_loader, *args, **options)
            return first
        if data_loader is first:
            return first
        if isinstance(data_loader.sampler, RandomSampler) and not first.shuffles:
            raise GpqTrainError(
                "the first loader that accelerator.prepare() gets has the training data, but only "
                "a later one is shuffled",
                "give it the loader of the training data first",
            )
        processes, self.processes = self.processes, self.job.replicas
        try:
            return super().prepare_data_loader(data_loader, *args, **options)
        finally:
            self.processes = processes

    def prepare_model(self, model: Any, *args: Any, **options: Any) -> Any:
        prepared = super().prepare_model(model, *args, **options)
        keep(self.training.models, prepared)
        return prepared

    def prepare_optimizer(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        accelerated = super().prepare_optimizer(optimizer, *args, **options)
        if keep(self.training.optimizers, accelerated):
            self._refuse_late("an optimizer")
        return accelerated

    def prepare_scheduler(self, scheduler: Any) -> Any:
        accelerated = super().prepare_scheduler(scheduler)
        if keep(self.training.schedulers, accelerated):
            self._refuse_late("a scheduler")
            if self.step_scheduler_with_optimizer and not self.split_batches:
                repeat_steps(scheduler, self.processes)
            accelerated.split_batches = True  # call its step() once per step
        return accelerated

    def _refuse_late(self, what: str) -> None:
        if self.training.is_attached:
            problem = "accelerator.prepare() got {} after the training began".format(what)
            raise GpqTrainError(problem, "prepare it before accelerator.epochs()")

    def register_for_checkpointing(self, *objects: Any) -> None:
        super().register_for_checkpointing(*objects)
        for item in objects:
            self.job.state(item)

    def register_save_state_pre_hook(self, hook: Any) -> Any:
        if not self.training.has_hooks:
            self.training.has_hooks = True
            self._notice(
                "gpq's checkpoints hold what accelerator.prepare() and register_for_checkpointing()"
                " get, but nothing that only a hook of save_state() saves"
            )
        return super().register_save_state_pre_hook(hook)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        if dataloader is self.training.loader:
            words = "accelerator.skip_first_batches() was given the training loader"
            raise GpqTrainError(words, "iterate over it. It starts where the job was stopped")
        return super().skip_first_batches(dataloader, num_batches)

    # -- in the loop -------------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """In the job's first attempt, because schedules and steps are computed from it."""
        if self.processes != self.job.replicas and not self.training.has_asked:
            self.training.has_asked = True
            words = (
                "accelerator.num_processes is {} in all attempts, because schedules are computed "
                "from it. This one has {} (accelerator.job.replicas)"
            )
            self._notice(words.format(self.processes, self.job.replicas))
        return self.processes

    @property
    def is_last_process(self) -> bool:
        return bool(self.process_index == self.job.replicas - 1)

    def accumulate(self, *models: Any) -> ContextManager[None]:
        """Does nothing: gpq decides how a step is accumulated."""
        return contextlib.nullcontext()

    def no_sync(self, model: Any) -> ContextManager[None]:
        """Does nothing: gpq averages gradients once per step."""
        return contextlib.nullcontext()

    def backward(self, loss: Any, **options: Any) -> None:
        """gpq weighs micro-batches, so the loss is not divided by their number."""
        steps: int = self.gradient_accumulation_steps
        self.gradient_accumulation_steps = 1
        try:
            super().backward(loss, **options)
        finally:
            self.gradient_accumulation_steps = steps

    def gather(self, tensor: Any) -> Any:
        """In a step of the training, replicas may have unequal numbers of rows."""
        if not self._is_training:
            return super().gather(tensor)
        return recursively_apply(gather_rows, tensor, error_on_other_type=True)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """In a step of the training, without rows that are repeated only to keep replicas in
        step."""
        if use_gather_object or not self._is_training:
            return super().gather_for_metrics(input_data, use_gather_object)
        loader = self.training.loader
        assert loader is not None
        most = 0 if loader.counted == 0 else None
        return recursively_apply(gather_rows, input_data, most=most, error_on_other_type=True)

    @property
    def _is_training(self) -> bool:
        """Is the script in a step, and not in a loader of Accelerate's own?"""
        loop = self.job._engine.loop
        return loop is not None and loop.in_body and not self.gradient_state.in_dataloader

    def _notice(self, words: str) -> None:
        self.job._engine.runtime.notice(words)


def keep(items: List[Any], item: Any) -> bool:
    """Add it to the list. Returns False if the list had it."""
    if any(item is other for other in items):
        return False
    items.append(item)
    return True


def gather_rows(tensor: torch.Tensor, most: Optional[int] = None) -> Any:
    """The rows of all replicas, of shape (rows, ...). `most`: from this one at most. A number is
    gathered as it is. Collective."""
    if tensor.ndim == 0:
        return gather(tensor)
    own = len(tensor[:most])
    counts = gather(torch.tensor([own], device=tensor.device)).tolist()
    parts = gather(pad_across_processes(tensor)).chunk(len(counts))
    return torch.cat([part[:count] for part, count in zip(parts, counts)])


def repeat_steps(scheduler: Any, times: int) -> None:
    """Let each step() count `times`, as an AcceleratedScheduler does on that many processes. The
    class is replaced, not the method, because state_dict() holds every attribute."""
    plain = type(scheduler)

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        end = getattr(self, "total_steps", None)  # beyond it OneCycleLR raises
        for _ in range(times):
            if end is None or self.last_epoch < end:
                plain.step(self, *args, **kwargs)

    members = {"step": step, "__module__": plain.__module__}
    scheduler.__class__ = type(plain.__name__, (plain,), members)


class ElasticLoader:
    """The training loader: micro-batches of gpq, on the device, and otherwise the attributes of the
    script's own DataLoader.

    `len(loader)` is the number of batches in an epoch of one process, as in the job's first
    attempt without gpq, so schedules that are computed from it stay right.
    """

    def __init__(
        self,
        accelerator: ElasticAccelerator,
        source: Any,
        device_placement: Optional[bool] = None,
        **options: Any,
    ) -> None:
        """Raises GpqTrainError. `options` of Accelerate have no meaning here."""
        self._source, self._accelerator = source, accelerator
        is_placed = accelerator.device_placement if device_placement is None else device_placement
        self._device = accelerator.device if is_placed else None
        size = size_of(source)
        job, processes = accelerator.job, accelerator.processes
        is_split, steps = accelerator.split_batches, accelerator.gradient_accumulation_steps
        round_size = int(source.batch_size or 1) * (1 if is_split else processes)
        total = round_size * steps
        self._length = size // round_size if source.drop_last else ceil_div(size, round_size)
        used = self._length * round_size if source.drop_last else size
        self.shuffles = type(source.sampler) is not SequentialSampler
        most = accelerator.training.max_batch_size
        self._loader: Loader = job.loader(
            source.dataset,
            batch_size=total,
            max_batch_size=most,
            max_local_batch=ceil_div(round_size, processes),
            fixed_batch=most is None,
            **order_of(source, used if used < size else None),
            **{name: getattr(source, name) for name in OPTIONS if hasattr(source, name)},
        )
        rest = used % total
        if rest and total > source.batch_size and not job.resumed:
            words = (
                "the last step of each epoch trains on the mean over its {} examples. Accelerate "
                "alone repeats examples or weighs them less there"
            )
            accelerator._notice(words.format(rest))

    @property
    def counted(self) -> int:
        """How many examples of the current micro-batch count, as in `job.loader()`."""
        return self._loader.counted

    def set_epoch(self, epoch: int) -> None:
        """As in Accelerate. The order of the examples needs no number."""
        if hasattr(self._source.dataset, "set_epoch"):
            self._source.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        runtime = self._accelerator.job._engine.runtime
        if runtime.epoch is None:
            raise GpqTrainError(
                "the loop over the training data is outside accelerator.epochs(), so it would "
                "start again at epoch 0 after a restart",
                "use for epoch in accelerator.epochs(count)",
            )
        self.set_epoch(runtime.epoch)
        try:
            yield from map(self._hand_over, self._loader)
        finally:
            self._accelerator.sync_gradients = True

    def _hand_over(self, batch: Any) -> Any:
        accelerator = self._accelerator
        accelerator.sync_gradients = accelerator.job.at_step
        if self._device is None:
            return batch
        return send_to_device(batch, self._device, non_blocking=accelerator.non_blocking)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def size_of(source: Any) -> int:
    """The number of examples in an epoch. Raises GpqTrainError for a loader that gpq cannot make
    again."""
    if isinstance(source.dataset, IterableDataset):
        problem = "the training data is a stream ({})".format(type(source.dataset).__name__)
        hint = "use a data set with a length and an index, or " + WITHOUT
        raise GpqTrainError(problem + ", so gpq cannot visit each example once", hint)
    if source.batch_size is None or type(source.batch_sampler) is not BatchSampler:
        words = "the training loader makes its batches itself ({})"
        hint = "give it batch_size=, and sampler= for an order of your own, or " + WITHOUT
        raise GpqTrainError(words.format(type(source.batch_sampler).__name__), hint)
    return len(source.sampler)


def order_of(source: Any, count: Optional[int]) -> Dict[str, Any]:
    """The arguments of `job.loader()` for the order of a DataLoader. `count`: use only so many
    examples of an epoch."""
    sampler, generator = source.sampler, source.generator
    if generator is None:  # the script may have seeded torch after gpq.accelerate()
        generator = torch.Generator().manual_seed(torch.initial_seed())
    is_plain = type(sampler) is SequentialSampler
    is_shuffle = type(sampler) is RandomSampler and not sampler.replacement
    is_whole = len(sampler) == len(source.dataset)
    if count is not None:
        return {"generator": generator, "sampler": Beginning(sampler, count)}
    if is_whole and (is_plain or is_shuffle):
        return {"generator": generator, "shuffle": is_shuffle}
    return {"generator": generator, "sampler": sampler}


class Beginning:
    """A sampler: the first `count` examples of another one."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self._count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.sampler), self._count)

    def __len__(self) -> int:
        return self._count
