"""All that a script can do with its job. Guards against wrong use, and delegates the rest."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NoReturn, Optional, Tuple

import torch

from gpq_agent import wire
from gpq_agent.train.data.loader import Loader
from gpq_agent.train.engine.engine import Engine
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.job import loops
from gpq_agent.train.job.components import make_components
from gpq_agent.train.job.loader_options import BatchSizes, Ordering, Source
from gpq_agent.train.job.plain_values import PlainValues
from gpq_agent.train.job.preparation import BatchScaling, Preparation
from gpq_agent.train.job.resumption import Resumption
from gpq_agent.train.job.script_saves import ScriptSaves
from gpq_agent.train.job.training_data import TrainingData, make_training_data
from gpq_agent.train.job.wrapping import wrap_model
from gpq_agent.train.optim.step_gate import StepGate
from gpq_agent.train.runtime.environment import Environment
from gpq_agent.train.runtime.rng import reseed, seed_all
from gpq_agent.train.runtime.termination import STOP_ORDERED, on_error

if TYPE_CHECKING:
    from gpq_agent.train.prove.recorder import Recorder


class Job:
    """What `gpq.init()` returns. The package's guide shows how a script uses it."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        seed: int,
        environ: Mapping[str, str],
        recorder: "Optional[Recorder]" = None,
    ) -> None:
        self.device = device
        self.rank = environment.rank  # of this replica among all, from 0
        self.local_rank = environment.local_rank  # among those of its node, from 0
        self.replicas = environment.replicas
        self.nodes = environment.nodes
        self.attempt = environment.attempt  # 0 without gpq
        self.resumed = environment.resumed  # is this a second or later attempt?
        self.checkpoint_dir = environment.checkpoint_dir  # None where there are no checkpoints
        self._engine = Engine(environment, device, environ, recorder)
        # Each process may have drawn a seed of its own. Replicas draw alike by that of rank 0.
        self._seed = self._engine.runtime.agreement.broadcast(seed)
        seed_all(self._seed)
        self._saves = ScriptSaves(self._engine)
        self._resumption = Resumption(self._engine)
        self._values = PlainValues(self._engine.checkpointer.parts, self._resumption.read)
        self._data: Optional[TrainingData] = None  # once there is a loader
        self._gate: Optional[StepGate] = None  # once its training is prepared
        if environment.checkpoint_dir:
            on_error(self._engine.failures.failed)

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
        """The loader of the training data: one per job, before `prepare`.

        `batch_size`: total over all replicas for which the learning rate is right;
        `max_batch_size`: largest total, by default the same; `max_local_batch`: largest that fits a
        device at once, by default `batch_size`; `fixed_batch`: the total never changes. `shuffle`:
        by default, unless there is a sampler; `sampler`: yields the indices of an epoch, the same
        on every replica; `batch_sampler`: yields the batches of its steps, which then never change;
        `drop_last`: leave out what is less than a batch; `generator`: its initial seed is that of
        the order and of the workers; `data_may_change`: a few examples are not held against those
        of the attempt before and of other replicas. `options`: num_workers, collate_fn, pin_memory,
        persistent_workers, prefetch_factor, worker_init_fn, timeout, multiprocessing_context,
        in_order, as for torch's DataLoader. Raises GpqTrainError.
        """
        if self._data is not None:
            hint = "use an ordinary DataLoader for evaluation"
            raise GpqTrainError("job.loader() was called twice", hint)
        source = Source(dataset, options, data_may_change)
        sizes = BatchSizes(batch_size, max_batch_size, max_local_batch, fixed_batch)
        ordering = Ordering(shuffle, sampler, batch_sampler, drop_last, generator)
        self._data = make_training_data(self._engine, self._seed, source, sizes, ordering)
        return self._data.loader

    def wrap(self, model: torch.nn.Module, *, sync_batch_norm: bool = False) -> torch.nn.Module:
        """The model on this replica's device, in DistributedDataParallel among several replicas.

        `sync_batch_norm`: batch norm takes its statistics over all replicas, so that their number
        changes nothing; on GPUs.
        """
        environment = self._engine.runtime.environment
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
        """Make optimizers, schedulers and GradScaler follow the batch size, and continue from the
        newest checkpoint.

        Models, optimizers and schedulers may be lists (a GAN; Muon beside AdamW). Returns model,
        optimizer and scheduler, the same objects. `rule`: auto, adascale, adam-sqrt, linear, sqrt,
        legw, none; `warmup_steps`: of your schedule, for legw; `scale_betas`: Adam's betas keep
        their half-life in examples; `measure`: of several optimizers the one on whose parameters
        gradient noise is measured, by default all. Raises GpqTrainError.
        """
        if self._engine.checkpointer.is_ready:
            hint = "call it once, with lists of models and optimizers"
            raise GpqTrainError("job.prepare() was called twice", hint)
        components = make_components(self.replicas, model, optimizer, scheduler, scaler, measure)
        preparation = Preparation(self._engine, self._resumption, components)
        if self._data is None:
            preparation.attach_steps()
        else:
            scaling = BatchScaling(rule, warmup_steps, scale_betas)
            self._gate = preparation.attach_training(self._data, scaling)
            reseed(self._seed, self._engine.runtime.meter.steps, self.rank)
        return model, optimizer, scheduler

    def state(self, part: Any, name: Any = None) -> Any:
        """Keep something in checkpoints, and restore it. Returns it.

        `job.state(part)`: anything with state_dict and load_state_dict; parts are matched by
        `name`, by default by the order of these calls. `job.state("best", 0.0)`: a plain value by
        its name: the first call returns what the checkpoint holds, else the value; later calls keep
        the value that they are given. Raises GpqTrainError.
        """
        if isinstance(part, str):
            return self._values.keep(part, name)
        self._engine.checkpointer.parts.add_of_the_script(part, name)
        return part

    def weigh(self, amount: float) -> None:
        """Call it before backward(): this micro-batch weighs `amount` (its tokens, say) instead of
        its examples.

        Losses that are means per token come out as if the whole batch of the step were one. Call it
        in every micro-batch, on every replica. Raises GpqTrainError.
        """
        self._engine.weigh(amount)

    # -- in the loop -------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """0 to count - 1, from where the checkpoint stands. An epoch is one pass over the data."""
        if self._data is None:
            hint = "for other loops use job.steps()"
            raise GpqTrainError("job.epochs() needs job.loader()", hint)
        yield from loops.epoch_loop(self._engine, self._data.loader.sampler, count)

    def steps(self, count: int) -> Iterator[int]:
        """0 to count - 1, from where the checkpoint stands: a loop without job.loader(), with
        batches of its own.

        Every generator of random numbers is seeded alike on all replicas, by the step: draw the
        whole batch on each, and let `share` take this replica's part. Draw nothing ahead of its
        step; what `job.eval()` draws does not count. The batch is fixed; the job stops and goes on
        between two steps, on any number of replicas. Call `prepare` first. Raises GpqTrainError.
        """
        if self._data is not None:
            raise GpqTrainError("job.steps() is for loops without job.loader()", "use job.epochs()")
        yield from loops.step_loop(self._engine, count, self._seed)

    def share(self, *batch: Any) -> Any:
        """This replica's rows of a batch that all replicas have drawn alike, each a tensor or a
        sequence of as many.

        Gradients then come out as the mean over the whole batch, whether or not it divides; give
        every micro-batch of a step equally many rows. Raises GpqTrainError for a batch with fewer
        rows than there are replicas.
        """
        return loops.rows_of_replica(self._engine, batch)

    def clip_grad_norm_(self, max_norm: float) -> Optional[torch.Tensor]:
        """Clip the gradient of the whole step. None in micro-batches that only accumulate."""
        if self._gate is None:
            raise GpqTrainError("job.clip_grad_norm_() was called before job.prepare()")
        if not self._gate.last:
            return None
        return torch.nn.utils.clip_grad_norm_(self._engine.parameters(), max_norm)

    def log(self, **values: Any) -> None:
        """Report numbers (or tensors of one element) by name; the newest of each goes up with the
        statistics.

        The one named `loss` makes the job's loss curve, a mean per report.
        """
        self._engine.log(values)  # on every replica, so that none fails alone: only rank 0 reports

    @contextmanager
    def eval(self) -> Iterator[None]:
        """No stop and no checkpoint inside; the time does not count as training."""
        with loops.evaluation(self._engine, restores_generators=self._data is None):
            yield

    @property
    def at_step(self) -> bool:
        """Will the coming optimizer.step() be a real one? (No, in micro-batches that only
        accumulate.)"""
        if self._gate is None:
            return True
        self._gate.asked_sync = True
        return self._gate.last

    @property
    def step(self) -> int:
        """Optimizer steps so far, over all attempts."""
        if self._gate is not None:
            self._gate.ask_step()
        if self._engine.runtime.meter.steps == 0:  # what is done at the very beginning only
            self._engine.observers.place_asked()
        return self._engine.runtime.meter.steps

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale, examples: larger batches help little. 0.0: not known."""
        return self._data.noise.noise_scale if self._data is not None else 0.0

    @property
    def progress(self) -> wire.Progress:
        """Where the job is. `samples` is 0 at the head of an epoch that begins as a whole."""
        self._engine.observers.place_asked()
        return self._engine.statistics.progress()

    # -- for any other loop: scripts that save by themselves ---------------------------------------

    @property
    def start_step(self) -> int:
        """The step to begin with: what the last complete save was committed with, else 0."""
        return self._saves.start_step

    @property
    def resume_path(self) -> Optional[str]:
        """Folder of the last complete save, None if there is none."""
        return self._saves.resume_path

    @property
    def save_path(self) -> str:
        """Folder to save into now; it counts once `saved` or `exit_preempted` is called."""
        return self._saves.next_path()

    def should_stop(self) -> bool:
        """Is the job asked to stop? Call it once per step, on every replica; all get the same
        answer.

        With job.loader() the job stops by itself, and this only tells.
        """
        if self._data is None and not self._engine.runtime.evaluating:
            loops.pass_boundary(self._engine)
        return bool(self._engine.boundaries.stopping) and not self._engine.runtime.evaluating

    def saved(self, next_step: int) -> None:
        """The save in `save_path` is complete; training would go on at `next_step`. Call it on
        every replica."""
        self._saves.commit(next_step)

    def exit_preempted(self, next_step: Optional[int] = None) -> NoReturn:
        """End this attempt; with `next_step`, commit the save in `save_path` first. Call it on
        every replica.

        Raises StopTraining (a SystemExit), so that `finally` blocks and exit handlers run.
        """
        if next_step is not None:
            self.saved(next_step)
        self._engine.boundaries.ending.leave(self._engine.boundaries.stopping or STOP_ORDERED)

    def done(self) -> None:
        """Training is over and all is written: an exit with 0 is the end of the job, even when it
        was asked to stop meanwhile.

        Call it on every replica, in a loop of your own or where you leave `job.epochs` early; the
        end of `job.epochs` says so by itself.
        """
        self._saves.finish()
        self._engine.boundaries.ending.done()
