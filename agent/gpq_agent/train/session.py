"""The job as a script sees it: `gpq.init()` and what it returns. What happens when is the engine's business."""

import atexit
import os
import time
import weakref
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from gpq_agent import wire

from .batches import Limits, starting
from .engine import Engine
from .environment import (
    Environment,
    bind_cores,
    close_group,
    let_threads_rest,
    open_device,
    open_group,
    read_environment,
)
from .errors import GpqTrainError, UnusableGpu
from .fingerprint import Fingerprint
from .intake import Intake
from .internals import untried
from .leaving import again, be_one_of_many, note_departure
from .loader import Loader, dataset_size
from .noise_scale import NoiseScale
from .own_saves import OwnSaves, files_below
from .refusals import refuse_sharded
from .restore import (
    USER,
    Trained,
    begin,
    choose_state,
    generator_states,
    given_seed,
    outside_parameters,
    reseed,
    set_generators,
    unwrapped,
)  # fmt: skip
from .sampler import GlobalSampler
from .scaling import Rule, make_rule
from .stepping import InnerOptimizer, ScheduleClock, StepGate, inner_optimizers
from .stopping import STOP_ORDERED, note_error, on_error


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
        self._engine = Engine(environment, device, environ)
        # Scripts draw one for themselves in each process; what all replicas draw alike hangs on it.
        self._seed = self._engine.agreement.first(seed)
        begin(self._seed)
        self._own = OwnSaves(environment.checkpoint_dir)
        if self.rank == 0:
            self._own.sweep()
        self._engine.meter.steps = self._own.start_step
        self._noise: Optional[NoiseScale] = None
        self._limits: Optional[Limits] = None
        self._loader: Optional[Loader] = None
        self._fingerprint: Optional[Fingerprint] = None
        self._gate: Optional[StepGate] = None
        self._registered = 0
        self._values: Dict[str, Value] = {}
        self._state: Optional[Dict[str, Any]] = None  # of the checkpoint, once it was read
        self._is_read = False
        if environment.checkpoint_dir:
            on_error(self._engine.failed)

    # -- set-up --------------------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        batch_size: Optional[int] = None,
        max_batch_size: Optional[int] = None,
        max_local_batch: Optional[int] = None,
        *,
        fixed_batch: bool = False,
        shuffle: Optional[bool] = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        drop_last: bool = False,
        generator: Optional[torch.Generator] = None,
        data_may_change: bool = False,
        **options: Any,
    ) -> Loader:
        """The loader of the training data: one per job, before `prepare`.

        `batch_size`: total over all replicas for which the learning rate is right; `max_batch_size`: largest total, by
        default the same; `max_local_batch`: largest that fits a device at once, by default `batch_size`; `fixed_batch`:
        the total never changes. `shuffle`: by default, unless there is a sampler; `sampler`: yields the indices of an
        epoch, the same on every replica; `batch_sampler`: yields the batches of its steps, which then never change;
        `drop_last`: leave out what is less than a batch; `generator`: its initial seed is that of the order and of the
        workers; `data_may_change`: a few examples are not held against those of the attempt before and of other replicas.
        `options`: num_workers, collate_fn, pin_memory, persistent_workers, prefetch_factor, worker_init_fn, timeout,
        multiprocessing_context, in_order, as for torch's DataLoader. Raises GpqTrainError.
        """
        if self._loader is not None:
            raise GpqTrainError("job.loader() was called twice", "use an ordinary DataLoader for evaluation")
        if self._engine.training:
            raise GpqTrainError("job.prepare() was called before job.loader()", "make the loader first")
        size = dataset_size(dataset)
        seed = self._seed if generator is None else self._engine.agreement.first(generator.initial_seed())
        if self._engine.check is not None and sampler is None and batch_sampler is None:
            size = self._engine.check.size(size, batch_size or 1)
        asked = Intake(size, batch_size, max_batch_size, max_local_batch, fixed_batch)
        drawn = asked.drawn(sampler, batch_sampler, shuffle=shuffle, drop_last=drop_last)
        limits = self._bounded(asked.limits(self.replicas, drawn, seed))
        if self._engine.check is not None:
            limits = self._engine.check.limits(limits)
        cursor = GlobalSampler(
            size,
            starting(limits),
            replicas=self.replicas,
            rank=self.rank,
            seed=seed,
            shuffle=shuffle is None or bool(shuffle),
            base=limits.base_batch,
            most=limits.max_local,
            drop_last=drop_last,
            drawn=drawn,
            gather=self._engine.agreement.gather,
            tell=self._engine.notice,
        )
        # How often a sampler repeats an example is not known: then the data count as endless.
        noise = NoiseScale(limits.base_batch, size if drawn is None else 0)
        loader = Loader(dataset, cursor, self._engine, generator=generator, **options)
        if not data_may_change and (self.replicas > 1 or self.checkpoint_dir):
            self._fingerprint = Fingerprint(dataset, dataset_size(dataset))
        self._limits, self._noise, self._loader = limits, noise, loader
        self._engine.attach_data(limits, cursor, noise)
        return loader

    def wrap(self, model: torch.nn.Module, *, sync_batch_norm: bool = False) -> torch.nn.Module:
        """The model on this replica's device, in DistributedDataParallel when there are several replicas.

        `sync_batch_norm`: batch norm takes its statistics over all replicas, so that their number changes nothing; on GPUs.
        """
        refuse_sharded(model)
        model = model.to(self.device)
        if sync_batch_norm:
            # Under gpq at once, not at the first restart on several CPU slots.
            if self.device.type != "cuda" and (self.replicas > 1 or self._engine.environment.run_dir):
                raise GpqTrainError("sync_batch_norm=True needs GPUs", "leave it out, or use layer or group norm")
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if self.replicas == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        rule: str = "auto",
        scaler: Any = None,
        warmup_steps: float = 0.0,
        scale_betas: bool = True,
        measure: Any = None,
    ) -> Tuple[Any, Any, Any]:
        """Make optimizers, schedulers and GradScaler follow the batch size, and continue from the newest checkpoint.

        Models, optimizers and schedulers may be lists (a GAN; Muon beside AdamW). Returns model, optimizer and scheduler,
        the same objects. `rule`: auto, adascale, adam-sqrt, linear, sqrt, legw, none; `warmup_steps`: of your schedule, for
        legw; `scale_betas`: Adam's betas keep their half-life in examples; `measure`: of several optimizers the one on whose
        parameters gradient noise is measured, by default all. Raises GpqTrainError.
        """
        if self._engine.training:
            raise GpqTrainError("job.prepare() was called twice", "give it lists of models and optimizers")
        models, optimizers, schedulers = _listed(model), _listed(optimizer), _listed(scheduler)
        refuse_sharded(models, optimizers)
        pairs = [unwrapped(each) for each in models]
        if self.replicas > 1 and not all(isinstance(each.wrapper, DistributedDataParallel) for each in pairs):
            raise GpqTrainError("the model is not wrapped for {} replicas".format(self.replicas), "use job.wrap(model)")
        measured = optimizers if measure is None else [measure]
        if not optimizers or not all(any(each is one for one in optimizers) for each in measured):
            raise GpqTrainError("job.prepare() needs an optimizer, and measure= one of those it was given")
        wrappers = [each.wrapper for each in pairs]
        if self._limits is None or self._noise is None:
            self._register([each.inner for each in pairs], optimizers, schedulers, scaler)
            self._restore()
            self._engine.attach_steps(wrappers, optimizers)
            return model, optimizer, scheduler
        rules = self._rules(rule, optimizers, warmup_steps)
        self._register([each.inner for each in pairs], optimizers, schedulers, scaler)
        self._restore()
        self._gate = self._engine.attach_training(
            wrappers, optimizers, rules, scaler, measured=measured, scale_betas=scale_betas
        )
        for part, clock in zip(schedulers, self._engine.meter.schedules):
            self._gate.wrap_scheduler(part, clock, self._engine.gain)
        if scaler is not None:
            self._gate.wrap_scaler(scaler)
        if len(optimizers) > 1 and not self._limits.fixed:
            whose = "all parameters" if measure is None else "the parameters of {}".format(type(measure).__name__)
            self._engine.notice("gradient noise is measured on {}".format(whose))
        reseed(self._seed, self._engine.meter.steps, self.rank)
        return model, optimizer, scheduler

    def state(self, part: Any, name: Any = None) -> Any:
        """Keep something in checkpoints, and restore it. Returns it.

        `job.state(part)`: anything with state_dict and load_state_dict; parts are matched by `name`, by default by the
        order of these calls. `job.state("best", 0.0)`: a plain value by its name: the first call returns what the
        checkpoint holds, else the value; later calls keep the value that they are given. Raises GpqTrainError.
        """
        if isinstance(part, str):
            return self._keep(part, name)
        self._registered += 1
        self._engine.parts.add("{}{}".format(USER, name if name is not None else self._registered), part)
        return part

    def weigh(self, amount: float) -> None:
        """Call it before backward(): this micro-batch weighs `amount` (its tokens, say) instead of its examples.

        Losses that are means per token come out as if the whole batch of the step were one. Call it in every micro-batch,
        on every replica. Raises GpqTrainError.
        """
        self._engine.weigh(amount)

    # -- in the loop ---------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """0 to count - 1, from where the checkpoint stands. An epoch is one pass over the data."""
        if self._loader is None:
            raise GpqTrainError("job.epochs() needs job.loader()", "for other loops use job.steps()")
        sampler = self._loader.sampler
        self._engine.meter.epochs = count
        self._engine.in_epochs = True
        while sampler.cursor.epoch < count:
            epoch = sampler.cursor.epoch
            self._engine.begin_epoch(epoch)
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

    def steps(self, count: int) -> Iterator[int]:
        """0 to count - 1, from where the checkpoint stands: a loop without job.loader(), with batches of its own.

        Every generator of random numbers is seeded alike on all replicas, by the step: draw the whole batch on each, and
        let `share` take this replica's part. Draw nothing ahead of its step; what `job.eval()` draws does not count. The
        batch is fixed; the job stops and goes on between two steps, on any number of replicas. Call `prepare` first.
        Raises GpqTrainError.
        """
        if self._loader is not None:
            raise GpqTrainError("job.steps() is for loops without job.loader()", "use job.epochs()")
        if not self._engine.training:
            raise GpqTrainError("job.steps() was called before job.prepare()", "prepare model and optimizer first")
        engine = self._engine
        engine.steps_wanted = count
        engine.declare()
        while engine.meter.steps < count:
            engine.boundary()
            reseed(self._seed, engine.meter.steps, 0)
            engine.share_weight(1.0)
            try:
                yield engine.meter.steps
            except GeneratorExit:
                engine.abandon()
                raise
            engine.meter.stepped(1.0)
            engine.say_ready()
        engine.finish()

    def share(self, *batch: Any) -> Any:
        """This replica's rows of a batch that all replicas have drawn alike, each a tensor or a sequence of as many.

        Gradients then come out as the mean over the whole batch, whether or not it divides; give every micro-batch of a
        step equally many rows. Raises GpqTrainError for a batch with fewer rows than there are replicas.
        """
        sizes = {len(each) for each in batch}
        if len(sizes) != 1:
            raise GpqTrainError("job.share() was given parts of different lengths: {}".format(sorted(sizes)))
        size = sizes.pop()
        if size < self.replicas:
            raise GpqTrainError(
                "a batch of {} does not reach {} replicas".format(size, self.replicas),
                "submit with --gpus 1-{}, or draw larger batches".format(size),
            )
        shares = [_rows(each, self.rank, self.replicas) for each in batch]
        self._engine.share_weight(self.replicas * len(shares[0]) / size, even=size % self.replicas == 0)
        return shares[0] if len(shares) == 1 else tuple(shares)

    def clip_grad_norm_(self, max_norm: float) -> Optional[torch.Tensor]:
        """Clip the gradient of the whole step; does nothing (None) in micro-batches that only accumulate."""
        if self._gate is None:
            raise GpqTrainError("job.clip_grad_norm_() was called before job.prepare()")
        if not self._gate.last:
            return None
        return torch.nn.utils.clip_grad_norm_(self._engine.parameters(), max_norm)

    def log(self, **values: Any) -> None:
        """Report numbers (or tensors of one element) by name; the newest of each goes up with the statistics.

        The one named `loss` makes the job's loss curve, a mean per report.
        """
        self._engine.log(values)  # on every replica, so that none fails alone; only rank 0 reports

    @contextmanager
    def eval(self) -> Iterator[None]:
        """No stop and no checkpoint inside; the time does not count as training."""
        # What is drawn here is no part of a step, which all replicas are to draw alike.
        kept = generator_states() if self._loader is None else []
        self._engine.evaluating += 1
        self._engine.pulse.phase("evaluating")
        self._engine.spoil()
        try:
            yield
        except BaseException:
            self._engine.evaluation_failed = True
            raise
        finally:
            set_generators(kept)
            self._engine.evaluating -= 1
            self._engine.pulse.phase("computing")

    @property
    def at_step(self) -> bool:
        """Will the coming optimizer.step() be a real one? (No, in micro-batches that only accumulate.)"""
        if self._gate is None:
            return True
        self._gate.guarded = True
        return self._gate.last

    @property
    def step(self) -> int:
        """Optimizer steps so far, over all attempts."""
        if self._gate is not None:
            self._gate.counted = True
        if self._engine.meter.steps == 0:  # what is done at the very beginning only
            self._engine.place_asked()
        return self._engine.meter.steps

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale, examples: larger batches than about this help little. 0.0: not known."""
        return self._noise.noise_scale if self._noise is not None else 0.0

    @property
    def progress(self) -> wire.Progress:
        """Where the job is. At the head of an epoch, `samples` is 0 but for an attempt that begins in the midst of it."""
        self._engine.place_asked()
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
        again()
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
        """End this attempt; with `next_step`, commit the save in `save_path` first. Call it on every replica.

        Raises StopTraining (a SystemExit), so that `finally` blocks and exit handlers run.
        """
        if next_step is not None:
            self.saved(next_step)
        self._engine.leave(self._engine.stopping or STOP_ORDERED)

    def done(self) -> None:
        """Training is over and all is written: an exit with 0 is the end of the job, even when it was asked to stop meanwhile.

        Call it on every replica, in a loop of your own or where you leave `job.epochs` early; the end of `job.epochs`
        says so by itself.
        """
        if self.rank == 0:
            try:
                self._own.finish()
            except OSError as error:
                self._engine.notice("cannot mark the last save: {}".format(error))
        self._engine.done()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bounded(self, limits: Limits) -> Limits:
        memory = self._engine.memory
        known = memory.bound() if memory is not None else None
        # Each node may have a record of its own; the smallest bound is everybody's.
        least = float(min(known or limits.max_local, limits.max_local))
        refuses = memory is not None and not memory.may_sample()
        greatest = self._engine.agreement.maximum([-least, float(refuses)])
        bound, self._engine.measures = -int(greatest[0]), not greatest[1]
        if bound >= limits.max_local:
            return limits
        self._engine.notice("an earlier attempt ran out of memory: at most {} examples at once".format(bound))
        return limits._replace(max_local=bound)

    def _rules(self, name: str, optimizers: List[Any], warmup_steps: float) -> List[Rule]:
        assert self._limits is not None
        rules: List[Rule] = []
        for optimizer in optimizers:
            try:
                rule = make_rule(name, optimizer, base_batch=self._limits.base_batch, warmup_steps=warmup_steps)
            except ValueError as error:
                raise GpqTrainError(str(error)) from None
            if rule.notice and not self._limits.fixed:
                self._engine.notice(rule.notice)
            rules.append(rule)
        return rules

    def _register(self, models: List[Any], optimizers: List[Any], schedulers: List[Any], scaler: Any) -> None:
        parts = self._engine.parts
        self._engine.meter.schedules = [ScheduleClock() for _ in schedulers]
        parts.add("progress", self._engine.meter)
        if self._loader is not None:
            parts.add("cursor", self._loader.sampler)
            parts.add("ledger", self._engine.ledger)
            parts.add("noise", self._noise)
        if self._fingerprint is not None:
            self._fingerprint.compare(self._engine.agreement, self._engine.notice)
            parts.add("data", self._fingerprint)
        for name, found in (("model", models), ("optimizer", optimizers)):
            for index, part in enumerate(found):
                parts.add("{}:{}".format(name, index) if index else name, part)
        parts.add("trained", Trained(optimizers))
        outside = outside_parameters(models, optimizers)
        if outside:
            parts.add("outside", outside)
        for index, optimizer in enumerate(optimizers):
            for place, inner in enumerate(inner_optimizers(optimizer)):
                parts.add("optimizer:{}.{}".format(index, place), InnerOptimizer(optimizer, inner))
        for index, scheduler in enumerate(schedulers):
            parts.add("scheduler:{}".format(index), scheduler)
        if scaler is not None:
            parts.add("scaler", scaler)

    def _keep(self, name: str, value: Any) -> Any:
        if not _is_plain(value):
            raise GpqTrainError(
                "job.state({!r}, ...) keeps numbers, texts and lists of them, not a {}".format(
                    name, type(value).__name__
                ),
                "what has state_dict() and load_state_dict() is kept by job.state(part)",
            )
        if name in self._values:
            self._values[name].value = value
            return value
        self._read()
        kept = self._values[name] = Value(value)
        self._engine.parts.add(USER + name, kept)
        return kept.value

    def _read(self) -> None:
        """The checkpoint, once. Collective."""
        if self._is_read:
            return
        self._is_read = True
        self._state = choose_state(self._engine.store, self._engine.group, self.rank, self._engine.notice)
        if self._state is not None:
            self._engine.parts.offer(self._state)

    def _restore(self) -> None:
        begin = time.perf_counter()
        if self.checkpoint_dir:
            self._engine.parts.refuse_unsavable()
        self._read()
        state, self._state = self._state, None
        if state is None:
            return
        try:
            self._engine.parts.restore(state)
            if self._loader is not None:
                self._engine.ledger.resume(self._loader.sampler.cursor.consumed)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, GpqTrainError):
                raise
            raise GpqTrainError(
                "the checkpoint does not fit this script: {}".format(" ".join(str(error).split())),
                "continue with the script that wrote it, or submit a new job",
            ) from error
        self._engine.restore_seconds = time.perf_counter() - begin


class Value:
    """A plain value in checkpoints."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.value = state["value"]


def _rows(batch: Any, first: int, stride: int) -> Any:
    rows = batch[first::stride]
    # Of tensors a copy where they are not in one piece, as a drawn batch is: models call view() on what they are given.
    return rows.contiguous() if isinstance(rows, torch.Tensor) else rows


def _listed(given: Any) -> List[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


_current: "List[weakref.ref[Job]]" = []  # at most one, to tell a script that asks for a second


def init(*, seed: Optional[int] = None, checkpoint_dir: Optional[str] = None) -> Job:
    """Set this replica up: process group, device, cores, seeds. Call it once, before anything is drawn at random.

    torch, numpy and random are seeded alike on all replicas, in each attempt: with rank 0's `seed`, by default the one that
    the script gave to torch before, else 0.

    `checkpoint_dir` is where checkpoints go when gpq gives no directory; without either there are none. Raises
    GpqTrainError when a job is already set up in this process.
    """
    if _current and _current[0]() is not None:
        raise GpqTrainError("gpq.init() was called twice in one process", "keep the job that the first call returned")
    environment = read_environment(os.environ)
    if environment.checkpoint_dir is None and checkpoint_dir is not None:
        environment = environment._replace(checkpoint_dir=os.path.abspath(checkpoint_dir))
    problem = bind_cores(environment.cores)
    device = _open_device(environment)
    if environment.replicas > 1:
        be_one_of_many()
        atexit.register(let_threads_rest)
    if open_group(environment, device):
        atexit.register(close_group)  # NCCL complains otherwise, and threads of gloo may outlive the interpreter
    if environment.replicas > 1 and environment.run_dir:
        atexit.register(note_departure, environment.run_dir, environment.rank)  # runs before the group is closed
    job = Job(environment, device, given_seed() if seed is None else seed, os.environ)
    for words in (problem, untried(torch.__version__)):
        if words:
            job._engine.notice(words)
    _current[:] = [weakref.ref(job)]
    return job


def _open_device(environment: Environment) -> torch.device:
    """As open_device. The node agent is told which GPU could not be used."""
    try:
        return open_device(environment)
    except UnusableGpu as error:
        if environment.run_dir and environment.local_rank < len(environment.gpus):
            gpu = environment.gpus[environment.local_rank]
            note_error(environment.run_dir, environment.rank, error, gpu)
        raise
