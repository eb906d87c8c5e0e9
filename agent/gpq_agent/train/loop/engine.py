"""The engine of a job, assembled. `job` calls its parts, and a loop calls `loop.py`."""

import sys
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

import torch

from gpq_agent import wire
from gpq_agent.train.data.batches import Limits
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.habits.freedoms import Freedoms, line, read_proof
from gpq_agent.train.habits.table import ACCEPTABLE, Habit, describe, is_suspected
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.loop.boundary import StepBoundary, StepRecord
from gpq_agent.train.loop.failures import FailureHandler
from gpq_agent.train.loop.loop import TrainingLoop
from gpq_agent.train.loop.runtime import Checkpointer, Runtime
from gpq_agent.train.loop.setup import OwnBatches, Training, set_up, share_outside
from gpq_agent.train.loop.shape import BatchShape, BatchSource
from gpq_agent.train.loop.side_effects import SideEffects
from gpq_agent.train.loop.statistics import Statistics
from gpq_agent.train.process.environment import Environment

if TYPE_CHECKING:
    from gpq_agent.train.prove.recorder import Recorder


class Engine:
    """One per job. `loop`: None until the script has prepared its training. `own_batches`: of a
    loop without `job.loader()`. is_cleared: `gpq check` found that this very program trains the
    same in every shape."""

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        environ: Mapping[str, str],
        recorder: "Optional[Recorder]" = None,
    ) -> None:
        self.runtime = Runtime(environment, device, environ, recorder)
        self.shape = BatchShape(self._freedoms(), environment.replicas)
        self.steps = StepRecord()
        self.checkpointer = Checkpointer(self.runtime)
        self.side_effects = SideEffects(self.runtime, self.checkpointer.store)
        self.statistics = Statistics(self.runtime, self.shape)
        self.failures = FailureHandler(self)
        self.boundaries = StepBoundary(self)
        self.loop: Optional[TrainingLoop] = None
        self.own_batches: Optional[OwnBatches] = None
        self.is_cleared = False

    def attach_data(self, limits: Limits, sampler: GlobalSampler, noise: NoiseScale) -> None:
        """`job.loader()` was called."""
        self.shape.data = BatchSource(limits, sampler, noise)
        if not self.statistics.measures:
            sampler.sample_every = 0

    def recall(self, digest: Callable[[], str]) -> None:
        """Recall what `gpq check` found, and what earlier attempts saw. `digest`: of the program
        that runs here. Collective."""
        runtime = self.runtime
        if runtime.recorder is not None:
            runtime.recorder.note_program()
        proof = read_proof(runtime.environ, runtime.notice) if runtime.is_lead else None
        every_shape = proof is not None and set(proof.same) == set(wire.FREEDOMS)
        is_cleared = proof is not None and every_shape and proof.program == digest()
        self.is_cleared = runtime.agreement.broadcast_flag(is_cleared)
        self.shape.freedoms.recall(proof, is_cleared=self.is_cleared)

    def attach(self, training: Training, *, watch: bool = True) -> TrainingLoop:
        """`job.prepare()` was called, after `job.loader()`. Collective. `watch`: look for habits of
        hand-written loops."""
        assert self.shape.data is not None
        setup = set_up(training, self.shape.data, self.runtime)
        self.statistics.probes = [setup.probe]
        self.boundaries.watch = loop_watch = LoopWatch(self, setup)
        if not watch:
            loop_watch.stop()
        self.loop = loop = TrainingLoop(self, setup, loop_watch)
        if self.runtime.replicas > 1:
            share_outside(setup)
            self.shape.freedoms.agree()
        self.shape.reshape()
        self.checkpointer.is_ready = True
        return loop

    def attach_steps(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> None:
        """`job.prepare()` was called without `job.loader()`. Collective."""
        self.own_batches = OwnBatches(self.runtime, models, optimizers)
        if self.own_batches.trains_outside:
            self.lose("outside-parameters")
        self.shape.freedoms.agree()
        self.checkpointer.is_ready = True

    def training_loop(self) -> TrainingLoop:
        """Raises GpqTrainError before `job.prepare()`."""
        if self.loop is None:
            raise GpqTrainError(
                "the loader was used before job.prepare()",
                "call job.prepare(model, optimizer) first",
            )
        return self.loop

    def lose(self, code: str, detail: str = "") -> None:
        """The loop has this habit, or seems to have it and `gpq check` must test it. Evaluations do
        not count, nor does what follows the training."""
        if self.runtime.evaluating or self.runtime.finished:
            return
        recorder, habit = self.runtime.recorder, Habit(code, detail)
        if recorder is not None and is_suspected(code):
            recorder.suspect(describe(habit))
        else:
            self.shape.freedoms.record(habit)

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
