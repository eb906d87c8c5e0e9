"""The job as a script sees it: `gpq.init()` and what it returns. What happens when is the engine's business."""

import atexit
import os
import time
import weakref
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, NoReturn, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent import wire

from .batches import Limits, starting
from .engine import Engine
from .environment import Environment, bind_cores, close_group, open_device, open_group, read_environment
from .errors import GpqTrainError
from .loader import Loader, dataset_size
from .noise_scale import NoiseScale
from .own_saves import OwnSaves, files_below
from .restore import choose_state, reseed, unwrapped
from .sampler import GlobalSampler
from .scaling import make_rule
from .stepping import ScheduleClock, StepGate
from .stopping import STOP_ORDERED, on_out_of_memory


class Job:
    """What `gpq.init()` returns. The package's guide shows how a script uses it."""

    def __init__(self, environment: Environment, device: torch.device, seed: int, environ: Mapping[str, str]) -> None:
        self.device = device
        self.rank = environment.rank
        self.local_rank = environment.local_rank
        self.replicas = environment.replicas
        self.nodes = environment.nodes
        self.attempt = environment.attempt
        self.resumed = environment.resumed
        self.checkpoint_dir = environment.checkpoint_dir
        self._seed = seed
        self._engine = Engine(environment, device, environ)
        self._own = OwnSaves(environment.checkpoint_dir)
        if self.rank == 0:
            self._own.sweep()
        self._engine.meter.steps = self._own.start_step
        self._noise: Optional[NoiseScale] = None
        self._limits: Optional[Limits] = None
        self._loader: Optional[Loader] = None
        self._gate: Optional[StepGate] = None
        self._optimizer: Any = None
        self._registered = 0
        if environment.checkpoint_dir:
            on_out_of_memory(self._engine.out_of_memory)

    # -- set-up --------------------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        max_batch_size: Optional[int] = None,
        max_local_batch: Optional[int] = None,
        *,
        fixed_batch: bool = False,
        shuffle: bool = True,
        **options: Any,
    ) -> Loader:
        """The loader of the training data: one per job, before `prepare`.

        `batch_size`: total over all replicas for which the learning rate is right; `max_batch_size`: largest total, by
        default the same; `max_local_batch`: largest that fits a device at once, by default `batch_size`; `fixed_batch`:
        the total never changes. `options`: num_workers, collate_fn, pin_memory, persistent_workers, prefetch_factor,
        worker_init_fn, as for torch's DataLoader. Raises GpqTrainError.
        """
        if self._loader is not None:
            raise GpqTrainError("job.loader() was called twice", "use an ordinary DataLoader for evaluation")
        size = dataset_size(dataset)
        if self._engine.check is not None:
            size = self._engine.check.size(size, batch_size)
        limits = self._bounded(_limits(batch_size, max_batch_size, max_local_batch, self.replicas, fixed_batch))
        if self._engine.check is not None:
            limits = self._engine.check.limits(limits)
        sampler = GlobalSampler(
            size, starting(limits), replicas=self.replicas, rank=self.rank, seed=self._seed, shuffle=shuffle
        )
        self._limits, self._noise = limits, NoiseScale(batch_size, size)
        self._engine.attach_data(limits, sampler, self._noise)
        self._loader = Loader(dataset, sampler, self._engine, **options)
        return self._loader

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this replica's device, in DistributedDataParallel when there are several replicas."""
        model = model.to(self.device)
        if self.replicas == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Any = None,
        *,
        rule: str = "auto",
        scaler: Any = None,
        warmup_steps: float = 0.0,
    ) -> Tuple[torch.nn.Module, Any, Any]:
        """Make optimizer, scheduler(s) and GradScaler follow the batch size, and continue from the newest checkpoint.

        Returns model, optimizer and scheduler, the same objects. `rule`: auto, adascale, adam-sqrt, linear, sqrt, legw,
        none; `warmup_steps`: of your schedule, for legw. Raises GpqTrainError.
        """
        if self._limits is None or self._noise is None or self._loader is None:
            raise GpqTrainError("job.prepare() was called before job.loader()", "make the loader first")
        if self._gate is not None:
            raise GpqTrainError("job.prepare() was called twice", "one model and one optimizer per job")
        wrapper, inner = unwrapped(model)
        if self.replicas > 1 and not isinstance(wrapper, DistributedDataParallel):
            raise GpqTrainError("the model is not wrapped for {} replicas".format(self.replicas), "use job.wrap(model)")
        try:
            chosen = make_rule(rule, optimizer, base_batch=self._limits.base_batch, warmup_steps=warmup_steps)
        except ValueError as error:
            raise GpqTrainError(str(error)) from None
        if chosen.notice:
            self._engine.notice(chosen.notice)
        schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler] * (scheduler is not None)
        self._register(inner, optimizer, schedulers, scaler)
        self._restore()
        self._optimizer = optimizer
        self._gate = self._engine.attach_training(wrapper, optimizer, chosen, scaler)
        for part, clock in zip(schedulers, self._engine.meter.schedules):
            self._gate.wrap_scheduler(part, clock.due)
        if scaler is not None:
            self._gate.wrap_scaler(scaler)
        reseed(self._seed, self._engine.meter.steps, self.rank)
        return model, optimizer, scheduler

    def state(self, part: Any, name: Optional[str] = None) -> Any:
        """Keep `part` (anything with state_dict and load_state_dict) in checkpoints, and restore it. Returns it.

        Parts are matched by `name`, by default by the order of these calls. Raises GpqTrainError.
        """
        self._registered += 1
        self._engine.parts.add("user:{}".format(name if name is not None else self._registered), part)
        return part

    # -- in the loop ---------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """0 to count - 1, from where the checkpoint stands. An epoch is one pass over the data."""
        if self._loader is None:
            raise GpqTrainError("job.epochs() needs job.loader()", "for other loops use job.start_step")
        sampler = self._loader.sampler
        self._engine.meter.epochs = count
        while sampler.cursor.epoch < count:
            epoch = sampler.cursor.epoch
            try:
                yield epoch
            except GeneratorExit:
                self._engine.abandon()
                raise
            self._engine.close_epoch()
            if sampler.cursor.epoch == epoch:
                sampler.seek(epoch + 1)
            if epoch + 1 < count:
                self._engine.boundary()
        self._engine.finish()

    def clip_grad_norm_(self, max_norm: float) -> Optional[torch.Tensor]:
        """Clip the gradient of the whole step; does nothing (None) in micro-batches that only accumulate."""
        if self._gate is None:
            raise GpqTrainError("job.clip_grad_norm_() was called before job.prepare()")
        self._gate.finish_backward()
        if not self._gate.last:
            return None
        parameters = [item for group in self._optimizer.param_groups for item in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def log(self, **values: Any) -> None:
        """Report numbers (or tensors of one element) by name; the newest of each goes up with the statistics.

        The one named `loss` makes the job's loss curve, a mean per report.
        """
        self._engine.log(values)  # on every replica, so that none fails alone; only rank 0 reports

    @contextmanager
    def eval(self) -> Iterator[None]:
        """No stop and no checkpoint inside; the time does not count as training."""
        self._engine.evaluating += 1
        self._engine.pulse.phase("evaluating")
        self._engine.spoil()
        try:
            yield
        except BaseException:
            self._engine.evaluation_failed = True
            raise
        finally:
            self._engine.evaluating -= 1
            self._engine.pulse.phase("computing")

    @property
    def at_step(self) -> bool:
        """Will the coming optimizer.step() be a real one? (No, in micro-batches that only accumulate.)"""
        return self._gate is None or self._gate.last

    @property
    def step(self) -> int:
        """Optimizer steps so far, over all attempts."""
        return self._engine.meter.steps

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale, examples: larger batches than about this help little. 0.0: not known."""
        return self._noise.noise_scale if self._noise is not None else 0.0

    @property
    def progress(self) -> wire.Progress:
        """Where the job is."""
        return self._engine.progress()

    # -- for any other loop: scripts that save by themselves -----------------------------------------------------------

    @property
    def start_step(self) -> int:
        """The step to begin with: what the last complete save was committed with, else 0."""
        return self._own.start_step

    @property
    def resume_path(self) -> Optional[str]:
        """Folder of the last complete save, None if there is none."""
        return self._own.resume_path

    @property
    def save_path(self) -> str:
        """Folder to save into now; it counts once `saved` or `exit_preempted` is called."""
        return self._own.next_path()

    def should_stop(self) -> bool:
        """Is the job asked to stop? Call it once per step, on every replica; all get the same answer.

        With job.loader() the job stops by itself, and this only tells.
        """
        if self._loader is None and not self._engine.evaluating:
            self._engine.declare()
            self._engine.meter.steps += 1
            self._engine.say_ready()
            self._engine.boundary()
        return bool(self._engine.stopping) and not self._engine.evaluating

    def saved(self, next_step: int) -> None:
        """The save in `save_path` is complete; training would go on at `next_step`. Call it on every replica."""
        if self.rank == 0:
            begin = time.perf_counter()
            path = self._own.commit(next_step)
            size = sum(os.path.getsize(name) for name in files_below(path))
            content = {"step": next_step, "seconds": time.perf_counter() - begin, "bytes": size, "why": "periodic"}
            self._engine.report.send("checkpoint", content)
        else:
            self._own.advance()
        self._engine.meter.steps = next_step
        self._engine.agreement.confirm(success=True)

    def exit_preempted(self, next_step: Optional[int] = None) -> NoReturn:
        """End this attempt; with `next_step`, commit the save in `save_path` first. Call it on every replica."""
        if next_step is not None:
            self.saved(next_step)
        self._engine.leave(self._engine.stopping or STOP_ORDERED)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bounded(self, limits: Limits) -> Limits:
        memory = self._engine.memory
        known = memory.bound() if memory is not None else None
        # Each node may have a record of its own; the smallest bound is everybody's.
        bound = -int(self._engine.agreement.maximum([-float(min(known or limits.max_local, limits.max_local))])[0])
        if bound >= limits.max_local:
            return limits
        self._engine.notice("an earlier attempt ran out of memory: at most {} examples at once".format(bound))
        return limits._replace(max_local=bound)

    def _register(self, model: torch.nn.Module, optimizer: Any, schedulers: List[Any], scaler: Any) -> None:
        assert self._loader is not None
        parts = self._engine.parts
        self._engine.meter.schedules = [ScheduleClock() for _ in schedulers]
        parts.add("cursor", self._loader.sampler)
        parts.add("progress", self._engine.meter)
        parts.add("ledger", self._engine.ledger)
        parts.add("noise", self._noise)
        parts.add("model", model)
        parts.add("optimizer", optimizer)
        for index, scheduler in enumerate(schedulers):
            parts.add("scheduler:{}".format(index), scheduler)
        if scaler is not None:
            parts.add("scaler", scaler)

    def _restore(self) -> None:
        assert self._loader is not None
        begin = time.perf_counter()
        state = choose_state(self._engine.store, self._engine.group, self.rank, self._engine.notice)
        if state is None:
            return
        try:
            self._engine.parts.restore(state)
            self._engine.ledger.resume(self._loader.sampler.cursor.consumed)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, GpqTrainError):
                raise
            raise GpqTrainError(
                "the checkpoint does not fit this script: {}".format(" ".join(str(error).split())),
                "continue with the script that wrote it, or submit a new job",
            ) from error
        self._engine.restore_seconds = time.perf_counter() - begin


def _limits(batch: int, largest: Optional[int], local: Optional[int], replicas: int, fixed: bool) -> Limits:
    for name, value in (("batch_size", batch), ("max_batch_size", largest), ("max_local_batch", local)):
        if value is not None and value < 1:
            raise GpqTrainError("{} must be at least 1, not {}".format(name, value))
    if largest is not None and largest < batch:
        raise GpqTrainError(
            "max_batch_size {} is below batch_size {}".format(largest, batch),
            "batch_size is the total over all replicas, max_batch_size how far it may grow",
        )
    return Limits(batch, batch if fixed else largest or batch, local or batch, replicas, fixed)


_current: "List[weakref.ref[Job]]" = []  # at most one, to tell a script that asks for a second


def init(*, seed: int = 0, checkpoint_dir: Optional[str] = None) -> Job:
    """Set this replica up: process group, device, cores, seeds. Call it once, before building the model.

    `checkpoint_dir` is where checkpoints go when gpq gives no directory; without either there are none. Raises
    GpqTrainError when a job is already set up in this process.
    """
    if _current and _current[0]() is not None:
        raise GpqTrainError("gpq.init() was called twice in one process", "keep the job that the first call returned")
    environment = read_environment(os.environ)
    if environment.checkpoint_dir is None and checkpoint_dir is not None:
        environment = environment._replace(checkpoint_dir=os.path.abspath(checkpoint_dir))
    problem = bind_cores(environment.cores)
    device = open_device(environment)
    if open_group(environment, device) and device.type == "cuda":
        atexit.register(close_group)  # NCCL complains otherwise
    torch.manual_seed(seed)
    job = Job(environment, device, seed, os.environ)
    if problem:
        job._engine.notice(problem)
    _current[:] = [weakref.ref(job)]
    return job
