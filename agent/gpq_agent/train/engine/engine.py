"""The engine of a job, assembled: `job` and its loader talk to it."""

import sys
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

import torch

from gpq_agent import wire
from gpq_agent.train.attempt.checkpointer import Checkpointer
from gpq_agent.train.attempt.runtime import Runtime
from gpq_agent.train.attempt.setup import Training, TrainingSetup, set_up, share_outside
from gpq_agent.train.attempt.shape import BatchShape, BatchSource
from gpq_agent.train.attempt.side_effects import SideEffects
from gpq_agent.train.attempt.statistics import Statistics, StepRecord
from gpq_agent.train.data.batches import Limits
from gpq_agent.train.data.sampler import GlobalSampler, MicroBatch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.habits.freedoms import Freedoms, line
from gpq_agent.train.habits.table import ACCEPTABLE, Habit, described, is_suspected
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.noise.noise_scale import NoiseScale
from gpq_agent.train.proof import program
from gpq_agent.train.proof import read as read_proof
from gpq_agent.train.runtime.agreement import LOOP
from gpq_agent.train.runtime.environment import Environment

from .boundary import StepBoundary
from .failures import FailureHandler
from .loop import LoopBegin, TrainingLoop
from .own_batches import OwnBatches, trains_outside

if TYPE_CHECKING:
    from gpq_agent.train.prove.recorder import Recorder


class Engine:
    """One per job. `loop`: None until the script has prepared its training. `epoch`: the newest of
    `job.epochs()`, None before the first."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        environ: Mapping[str, str],
        recorder: "Optional[Recorder]" = None,
    ) -> None:
        self.runtime = runtime = Runtime(environment, device, environ, recorder)
        self.shape = BatchShape(self._freedoms(), environment.replicas)
        self.steps = StepRecord()
        self.checkpointer = Checkpointer(runtime)
        self.side_effects = SideEffects(runtime, self.checkpointer.store)
        self.statistics = Statistics(runtime, self.shape)
        self.epoch: Optional[int] = None
        self.failures = FailureHandler(runtime, self.shape)
        self.boundaries = StepBoundary(
            runtime,
            self.shape,
            self.steps,
            self.checkpointer,
            self.statistics,
        )
        self.loop: Optional[TrainingLoop] = None
        self.own_batches: Optional[OwnBatches] = None

    # -- set-up ------------------------------------------------------------------------------------

    def attach_data(self, limits: Limits, sampler: GlobalSampler, noise: NoiseScale) -> None:
        """`job.loader()` was called."""
        self.shape.data = BatchSource(limits, sampler, noise)
        if not self.statistics.measures:
            sampler.sample_every = 0

    def attach_training(self, training: Training) -> TrainingLoop:
        """`job.prepare()` was called, after `job.loader()`. Collective."""
        assert self.shape.data is not None
        setup = set_up(training, self.shape.data, self.runtime)
        self.statistics.probes = [setup.probe]
        self.boundaries.watch = watch = self._watch(setup)
        self.loop = self.failures.loop = loop = TrainingLoop(
            self.runtime,
            setup,
            self.shape,
            watch,
            self._report,
            self.steps,
            self.statistics,
            self.boundaries.ledger,
            self.checkpointer.parts,
        )
        self._recall()
        if setup.reducer is not None and setup.reducer.own_hooks:
            self._report("comm-hook")
        if self.runtime.replicas > 1:
            share_outside(setup)
            self.shape.freedoms.agree()
        self.shape.reshape()
        self.checkpointer.is_ready = True
        return loop

    def attach_steps(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> None:
        """`job.prepare()` was called without `job.loader()`. Collective."""
        self.own_batches = OwnBatches(self.runtime, models, optimizers)
        self._recall()
        if trains_outside(models, optimizers):
            self._report("outside-parameters")
        self.shape.freedoms.agree()
        self.checkpointer.is_ready = True

    # -- told by the loader ------------------------------------------------------------------------

    def notice(self, message: str) -> None:
        """A line for the user."""
        self.runtime.notice(message)

    def feed(self, dataset: Any, sampler: GlobalSampler) -> Tuple[Any, Any]:
        """Data set and batch sampler for the DataLoader. `gpq check` has its own."""
        recorder = self.runtime.recorder
        return (dataset, sampler) if recorder is None else recorder.sampler(dataset, sampler)

    def boundary(self) -> None:
        if not self.runtime.finished:
            self.between_steps()

    def between_steps(self) -> None:
        """As `boundary`. After the end, training begins again."""
        self.side_effects.begin()
        self.boundaries.run()

    def is_over(self) -> bool:
        return self.runtime.finished

    def fetch(self) -> None:
        self.statistics.times.start()

    def renewed(self) -> bool:
        return self.shape.renewed()

    def loop_begins(self, *, by_next: bool) -> Optional[int]:
        if self.loop is None:
            raise GpqTrainError(
                "the loader was used before job.prepare()",
                "call job.prepare(model, optimizer) first",
            )
        if self._in_batch():
            raise GpqTrainError(
                "a loop over the loader started while another one is still in a batch",
                "use one loop at a time. To look at the data, call next(iter(loader)) and do "
                "not keep the iterator",
            )
        self.loop.loop_begins(LoopBegin(by_next, self.epoch))
        if not (self.runtime.evaluating or self.runtime.finished):
            self.runtime.agreement.call = LOOP
            self.runtime.agreement.meet()
        return self.epoch

    def batch_begins(self, micro: MicroBatch) -> bool:
        return self.loop is not None and self.loop.batch_begins(micro)

    def batch_ends(self, micro: MicroBatch, *, left_early: bool) -> bool:
        return self.loop is not None and self.loop.batch_ends(micro, left_early=left_early)

    # -- told by the job ---------------------------------------------------------------------------

    def parameters(self) -> List[torch.nn.Parameter]:
        """The parameters of all prepared optimizers, each once."""
        return self.loop.parameters() if self.loop is not None else []

    def weigh(self, amount: float) -> None:
        """The current micro-batch weighs this much instead of its examples."""
        if self.loop is not None and self.loop.micro is not None:
            self.loop.weighing.weigh(self.loop.micro, amount)

    def share_weight(self, weight: float, *, even: bool = True) -> None:
        """In a loop that draws its own batches."""
        if self.own_batches is not None:
            self.own_batches.weigh(weight, even=even)

    def log(self, values: Mapping[str, Any]) -> None:
        """After the end these are reported at once."""
        self.statistics.log(values, at_once=self.runtime.finished)

    def begin_epoch(self, epoch: int) -> None:
        """`job.epochs()` is about to yield this epoch."""
        self.epoch = epoch
        if self.loop is not None and self.shape.data is not None:
            self.loop.gate.resumes_epoch = self.shape.data.sampler.cursor.consumed > 0

    # -- inside ------------------------------------------------------------------------------------

    def _freedoms(self) -> Freedoms:
        runtime = self.runtime
        names = runtime.environ.get(wire.ENV_ACCEPTED, "").split(",")
        accepted = {code for code in names if code}
        for code in sorted(accepted - ACCEPTABLE):
            text = "--accept {} has no effect: only suspected habits can be accepted"
            runtime.notice(text.format(code))
        folder, rank = runtime.environment.checkpoint_dir, runtime.environment.rank
        return Freedoms(folder, runtime.agreement, rank, self._tell, accepted & ACCEPTABLE)

    def _tell(self, habit: wire.Habit) -> None:
        sys.stderr.write("gpq: {}\n".format(line(habit)))
        self.runtime.report.send("habit", habit._asdict())

    def _report(self, code: str, detail: str = "") -> None:
        """The loop has this habit, or seems to have it and `gpq check` must test it. Evaluations do
        not count, nor does what follows the training."""
        if self.runtime.evaluating or self.runtime.finished:
            return
        recorder, habit = self.runtime.recorder, Habit(code, detail)
        if recorder is not None and is_suspected(code):
            recorder.suspect(described(habit))
        else:
            self.shape.freedoms.record(habit)

    def _recall(self) -> None:
        """Recall what `gpq check` found, and what earlier attempts saw."""
        runtime = self.runtime
        if runtime.recorder is not None:
            runtime.recorder.program = program()
        proof = read_proof(runtime.environ, runtime.notice) if runtime.is_lead else None
        self.shape.freedoms.recall(proof)

    def _watch(self, setup: TrainingSetup) -> LoopWatch:
        training, parts = setup.training, self.checkpointer.parts.held()

        def schedulers() -> List[Any]:
            of_torch = torch.optim.lr_scheduler.LRScheduler
            return [*training.schedulers, *(part for part in parts if isinstance(part, of_torch))]

        return LoopWatch(
            self._report,
            self.runtime.notice,
            models=training.models,
            optimizers=training.optimizers,
            schedulers=schedulers,
            gradients=setup.gradients,
            noticed=self.shape.freedoms.noticed,
            in_batch=self._in_batch,
        )

    def _in_batch(self) -> bool:
        """Is the script in a micro-batch, and not in an evaluation?"""
        has_batch = self.loop is not None and self.loop.micro is not None
        return has_batch and not self.runtime.evaluating
