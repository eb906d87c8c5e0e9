"""Everything that a script can do with its job: over epochs, over steps with its own batches, or in
any other loop. Refuses wrong use."""

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NoReturn, Optional, Tuple

import torch

from gpq_agent import wire
from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints, files_below
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.progress import ROUNDING
from gpq_agent.train.gradients.step_gate import StepGate
from gpq_agent.train.loop.engine import Engine
from gpq_agent.train.loop.loader import Loader, LoaderArguments, make_loader
from gpq_agent.train.loop.loop import TrainingLoop
from gpq_agent.train.loop.resumption import Resumption
from gpq_agent.train.loop.runtime import BatchSource
from gpq_agent.train.loop.setup import Training, make_rules, make_training, wrap_model
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.rng import generator_states, reseed, seed_all, set_generators
from gpq_agent.train.process.shutdown import STOP_ORDERED, on_error, raise_if_stopping

if TYPE_CHECKING:
    from gpq_agent.train.prove.recorder import Recorder


class Job:
    """What `gpq.init()` returns. `help(gpq_agent.train)` shows how a script uses it."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        seed: int,
        environ: Mapping[str, str],
        recorder: "Optional[Recorder]" = None,
    ) -> None:
        self.device = device
        self.rank = environment.rank  # of this replica, from 0
        self.local_rank = environment.local_rank  # of this replica on its server, from 0
        self.replicas = environment.replicas
        self.nodes = environment.nodes
        self.attempt = environment.attempt  # 0 without gpq
        self.resumed = environment.resumed  # is this a second or later attempt?
        self.checkpoint_dir = environment.checkpoint_dir  # None if there are no checkpoints
        self._engine = Engine(environment, device, environ, recorder)
        # Each process may have drawn its own seed. All replicas use the seed of rank 0.
        self._seed = self._engine.runtime.agreement.broadcast(seed)
        seed_all(self._seed)
        self._saves = ScriptCheckpoints(environment.checkpoint_dir)
        if self.rank == 0:
            self._saves.sweep()
        self._engine.runtime.meter.steps = self._saves.start_step
        if environment.checkpoint_dir:
            on_error(self._engine.failures.failed)
        self._resumption = Resumption(self._engine)
        self._gate: Optional[StepGate] = None  # set by prepare()

    # -- set-up ------------------------------------------------------------------------------------

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
        """Make the loader of the training data. Call it once, before `prepare`.

        batch_size: the total over all replicas that the learning rate is for.
        max_batch_size: the largest total that gpq may use. Default: `batch_size`.
        max_local_batch: the most examples that fit on one GPU at once. Default: `batch_size`.
        fixed_batch: the total never changes.
        shuffle: default True, unless there is a sampler.
        sampler: yields the indices of an epoch, the same on every replica.
        batch_sampler: yields the batches of the steps. Their size never changes.
        drop_last: drop an incomplete batch at the end of an epoch.
        generator: its initial seed is used for the order and the workers.
        data_may_change: do not compare examples with the previous attempt and other replicas.
        options: as in torch's DataLoader: num_workers, collate_fn, pin_memory, persistent_workers,
        prefetch_factor, worker_init_fn, timeout, multiprocessing_context, in_order.

        Raises GpqTrainError.
        """
        if self._data is not None:
            hint = "use an ordinary DataLoader for evaluation"
            raise GpqTrainError("job.loader() was called twice", hint)
        self._engine.runtime.agreement.call = "job.loader()"
        arguments = LoaderArguments(
            dataset, batch_size, max_batch_size, max_local_batch, fixed_batch, shuffle, sampler,
            batch_sampler, drop_last, generator, data_may_change, options,
        )  # fmt: skip
        return make_loader(self._engine, self._seed, arguments)

    def wrap(
        self,
        model: torch.nn.Module,
        *,
        batch_norm: Optional[int] = None,
        sync_batch_norm: bool = False,
    ) -> torch.nn.Module:
        """Move the model to this replica's device. Wrap it in DistributedDataParallel if there are
        several replicas.

        batch_norm: batch norm uses the statistics of groups of so many examples, so neither
        replicas nor micro-batches change anything. Needs `loader`.
        sync_batch_norm: batch norm uses the statistics of all replicas, so their number changes
        nothing. Needs GPUs.

        Raises GpqTrainError.
        """
        environment = self._engine.runtime.environment
        if batch_norm is not None:
            if sync_batch_norm:
                problem = "batch_norm= and sync_batch_norm= were both given"
                raise GpqTrainError(problem, "leave sync_batch_norm out")
            self._engine.norms.convert(model, batch_norm)
        return wrap_model(model, self.device, environment, sync_batch_norm=sync_batch_norm)

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
        """Make optimizers, schedulers and GradScaler follow the batch size, and resume from the
        newest checkpoint.

        Models, optimizers and schedulers may be lists, as for a GAN or for Muon with AdamW. Returns
        model, optimizer and scheduler, the same objects.

        rule: auto, adascale, adam-sqrt, linear, sqrt, legw or none.
        warmup_steps: the warm-up of your schedule, for legw.
        scale_betas: Adam's betas keep their half-life in examples.
        measure: the one optimizer on whose parameters gpq measures gradient noise. Default: all.

        Raises GpqTrainError.
        """
        training = make_training(self.replicas, model, optimizer, scheduler, scaler, measure)
        training = training._replace(scale_betas=scale_betas)
        self.attach(training, rule, warmup_steps, watch=True)
        return model, optimizer, scheduler

    def attach(
        self, training: Training, rule: str = "auto", warmup_steps: float = 0.0, *, watch: bool
    ) -> Optional[TrainingLoop]:
        """For adapters of frameworks: as `prepare`, and returns the loop that they drive, None
        without job.loader(). `watch`: look for habits of a hand-written loop."""
        engine = self._engine
        if engine.checkpointer.is_ready:
            hint = "call it once, with lists of models and optimizers"
            raise GpqTrainError("job.prepare() was called twice", hint)
        engine.runtime.agreement.call = "job.prepare()"
        engine.recall()
        if self._data is None:
            self._resumption.resume(training)
            engine.attach_steps(training.models, training.optimizers)
            return None
        limits = self._data.limits
        rules = make_rules(engine, training.optimizers, limits, rule, warmup_steps)
        training = training._replace(rules=rules)
        self._resumption.resume(training)
        loop = engine.attach(training, watch=watch)
        self._gate = loop.gate
        reseed(self._seed, engine.runtime.meter.steps, self.rank)
        return loop

    @property
    def _data(self) -> Optional[BatchSource]:
        """What `loader` made."""
        return self._engine.shape.data

    def state(self, part: Any, name: Any = None) -> Any:
        """Keep something in checkpoints, and restore it. Returns it.

        `job.state(part)` keeps an object with state_dict and load_state_dict. Parts are matched by
        `name`, or else by the order of these calls.

        `job.state("best", 0.0)` keeps a plain value by name. The first call returns the value from
        the checkpoint, or yours if there is none. Later calls keep the value that you pass.

        Raises GpqTrainError.
        """
        if isinstance(part, str):
            return self._engine.checkpointer.parts.keep_value(part, name)
        self._engine.checkpointer.parts.add_of_the_script(part, name)
        return part

    def weigh(self, amount: float) -> None:
        """Weigh this micro-batch by `amount`, such as its tokens, instead of by its examples. A
        loss that is a mean per token then becomes a mean over the whole step. Call it before
        backward(), in every micro-batch, on every replica. Raises GpqTrainError."""
        if self._engine.loop is not None:
            self._engine.loop.weigh(amount)

    # -- in the loop -------------------------------------------------------------------------------

    def epochs(self, count: int, *, passes: bool = False) -> Iterator[int]:
        """Yield 0 to count - 1, from the epoch of the checkpoint. Raises GpqTrainError.

        An epoch trains as much as one pass over the data at the usual batch size. With a larger
        batch that takes more examples, so the loader goes on into the next pass. `passes`: an epoch
        is one pass over the data, whatever it trains.
        """
        if self._data is None:
            hint = "for other loops use job.steps()"
            raise GpqTrainError("job.epochs() needs job.loader()", hint)
        sampler, engine = self._data.sampler, self._engine
        meter, boundaries = engine.runtime.meter, engine.boundaries
        passes = passes or self._data.limits.fixed
        meter.epochs, meter.passes = count, passes
        while meter.epoch < count:
            if engine.runtime.finished:
                engine.runtime.reopen()
            engine.runtime.epoch = meter.epoch
            if self._gate is not None:
                self._gate.resumes_epoch = meter.samples > 0
            try:
                yield meter.epoch
            except GeneratorExit:
                boundaries.ending.terminator.disarm()
                meter.passes = True  # of what follows the training
                raise
            boundaries.close_epoch()
            excess = meter.position - sampler.base_steps
            if passes or excess < -ROUNDING:  # or the script left the epoch early
                boundaries.close_pass(sampler.size)
                excess = 0.0
            elif sampler.is_over or meter.epoch == count - 1:
                boundaries.close_pass(sampler.cursor.consumed)
            meter.end_epoch(excess)
            if meter.epoch < count and not engine.runtime.finished:
                boundaries.run()
        boundaries.finish()
        meter.passes = True

    def steps(self, count: int) -> Iterator[int]:
        """Yield 0 to count - 1, from the step of the checkpoint, for a loop without job.loader().

        All generators of random numbers are seeded by the step, the same on every replica. Draw the
        whole batch on each replica, and let `share` take this replica's part. Draw nothing ahead of
        its step. What you draw inside `job.eval()` does not count. The batch size is fixed. The job
        stops and resumes between two steps, on any number of replicas. Call `prepare` first. Raises
        GpqTrainError.
        """
        if self._data is not None:
            raise GpqTrainError("job.steps() is for loops without job.loader()", "use job.epochs()")
        engine = self._engine
        if not engine.checkpointer.is_ready:
            hint = "call job.prepare() first"
            raise GpqTrainError("job.steps() was called before job.prepare()", hint)
        engine.statistics.total_steps = count
        engine.statistics.declare()
        while engine.runtime.meter.steps < count:
            engine.boundaries.run()
            reseed(self._seed, engine.runtime.meter.steps, 0)
            if engine.own_batches is not None:
                engine.own_batches.begin_step()
            try:
                yield engine.runtime.meter.steps
            except GeneratorExit:
                engine.boundaries.ending.terminator.disarm()
                raise
            engine.runtime.meter.stepped(1.0, applied=True)
            engine.statistics.say_ready()
        engine.boundaries.finish()

    def share(self, *batch: Any) -> Any:
        """Return this replica's rows of a batch that all replicas drew alike. The parts of a batch
        are tensors or sequences of the same length. The gradient is the mean over the whole batch,
        even if the number of replicas does not divide it. Give every micro-batch of a step the same
        number of rows. Raises GpqTrainError for a batch with fewer rows than replicas."""
        sizes = {len(part) for part in batch}
        if len(sizes) != 1:
            words = "job.share() was given parts of different lengths: {}"
            raise GpqTrainError(words.format(sorted(sizes)))
        size = sizes.pop()
        if size < self.replicas:
            words = "a batch of {} is too small for {} replicas"
            hint = "submit with --gpus 1-{}, or draw larger batches"
            raise GpqTrainError(words.format(size, self.replicas), hint.format(size))
        shares = [part[self.rank :: self.replicas] for part in batch]
        # Models call view() on a batch, which needs contiguous memory. Rows of it need a copy for
        # that.
        shares = [part.contiguous() if isinstance(part, torch.Tensor) else part for part in shares]
        if self._engine.own_batches is not None:
            self._engine.own_batches.weigh(self.replicas * len(shares[0]) / size)
        return shares[0] if len(shares) == 1 else tuple(shares)

    def clip_grad_norm_(self, max_norm: float) -> Optional[torch.Tensor]:
        """Clip the gradient of the whole step. None in micro-batches that only accumulate."""
        if self._gate is None:
            raise GpqTrainError("job.clip_grad_norm_() was called before job.prepare()")
        if not self._gate.last:
            return None
        return torch.nn.utils.clip_grad_norm_(self._engine.training_loop().parameters(), max_norm)

    def log(self, **values: Any) -> None:
        """Report numbers, or tensors with one element, by name. gpq shows the newest of each. The
        one named `loss` makes the job's loss curve, with one mean per report."""
        # On every replica, so that none fails alone. Only rank 0 reports. After the end at once.
        self._engine.statistics.log(values, at_once=self._engine.runtime.finished)

    @contextmanager
    def eval(self) -> Iterator[None]:
        """gpq neither stops nor saves inside, and the time does not count as training."""
        runtime = self._engine.runtime
        # Without job.loader() replicas draw batches alike, whatever one of them draws inside.
        generators = generator_states() if self._data is None else []
        # In an evaluation batch norm is plain.
        groups = self._engine.norms.groups
        examples, groups.examples = groups.examples, 0
        runtime.evaluating += 1
        runtime.pulse.phase("evaluating")
        self._engine.statistics.times.discard()
        try:
            yield
        except BaseException:
            runtime.evaluation_failed = True
            raise
        finally:
            set_generators(generators)
            groups.examples = examples
            runtime.evaluating -= 1
            runtime.pulse.phase("computing")

    @property
    def at_step(self) -> bool:
        """Is the coming optimizer.step() a real one? False in micro-batches that only
        accumulate."""
        if self._gate is None:
            return True
        self._gate.asked_sync = True
        return self._gate.last

    @property
    def step(self) -> int:
        """Optimizer steps so far, over all attempts."""
        if self._gate is not None:
            self._gate.ask_step()
        return self._engine.runtime.meter.steps

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale in examples. Larger batches help little. 0.0 if it is unknown."""
        return self._data.noise.noise_scale if self._data is not None else 0.0

    @property
    def progress(self) -> wire.Progress:
        """Where the job is. `samples` counts those of the epoch, so it is 0 at the start of one,
        unless it resumes in the middle."""
        return self._engine.statistics.progress()

    # -- for any other loop: scripts that save their own checkpoints -------------------------------

    @property
    def start_step(self) -> int:
        """The step to start at, as given with the last complete save, or 0."""
        return self._saves.start_step

    @property
    def resume_path(self) -> Optional[str]:
        """The folder of the last complete save, or None."""
        return self._saves.resume_path

    @property
    def save_path(self) -> str:
        """The folder to save to now. The save counts after `saved` or `exit_preempted`."""
        return self._saves.next_path()

    def should_stop(self) -> bool:
        """Must the job stop? Call it once per step, on every replica. All get the same answer. With
        job.loader() the job stops without it."""
        engine = self._engine
        if engine.runtime.evaluating:
            return False
        if self._data is None:
            engine.refuse_groups()
            engine.statistics.declare()
            engine.runtime.meter.steps += 1
            engine.statistics.say_ready()
            engine.boundaries.run()
            if engine.own_batches is not None:
                engine.own_batches.begin_step()
        return bool(engine.boundaries.stopping)

    def saved(self, next_step: int) -> None:
        """Say that the save in `save_path` is complete, and that training resumes at `next_step`.
        Call it on every replica. Raises OSError on replica 0 if the disk refuses it."""
        raise_if_stopping()
        runtime = self._engine.runtime
        runtime.agreement.call = "job.saved()"
        if runtime.is_lead:
            begin = time.perf_counter()
            path = self._saves.commit(next_step)
            size = sum(os.path.getsize(name) for name in files_below(path))
            seconds = time.perf_counter() - begin
            content = {"step": next_step, "seconds": seconds, "bytes": size, "why": "periodic"}
            runtime.report.send("checkpoint", content)
        else:
            self._saves.advance()
        runtime.meter.steps = next_step
        runtime.agreement.broadcast_flag(success=True)

    def exit_preempted(self, next_step: Optional[int] = None) -> NoReturn:
        """End this attempt. With `next_step`, commit the save in `save_path` first. Call it on
        every replica. Raises StopTraining (a SystemExit), so that `finally` blocks and exit
        handlers run."""
        if next_step is not None:
            self.saved(next_step)
        self._engine.boundaries.ending.leave(self._engine.boundaries.stopping or STOP_ORDERED)

    def done(self) -> None:
        """Say that training is over and everything is saved, so that exit code 0 ends the job. This
        holds even if gpq has asked the job to stop. Call it on every replica, after your own loop
        or when you leave `job.epochs` early. The end of `job.epochs` does it for you."""
        try:
            if self.rank == 0:
                self._saves.finish()
        except OSError as error:
            self._engine.runtime.notice("cannot mark the last save: {}".format(error))
        self._engine.boundaries.ending.done()
