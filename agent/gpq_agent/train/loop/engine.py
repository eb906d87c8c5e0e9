"""The engine of a job, assembled. `job.py` calls its parts, and a loop calls `loop.py`.

It also handles an error that ends the script: what the next attempt should know. If memory ran out,
it finds who chose the size that did not fit, and what the next attempt does instead.
"""

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.data.batches import Limits, Step, ceil_div
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.batch_norm import GroupedNorms
from gpq_agent.train.gradients.step_gate import wrap_scaler, wrap_scheduler
from gpq_agent.train.habits.freedoms import Freedoms, line, read_proof
from gpq_agent.train.habits.table import ACCEPTABLE, Habit, describe, is_suspected
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.loop.boundary import StepBoundary, StepRecord
from gpq_agent.train.loop.first_part import RUINED, RuinedWeights
from gpq_agent.train.loop.loop import TrainingLoop
from gpq_agent.train.loop.runtime import BatchShape, Checkpointer, Runtime, Statistics
from gpq_agent.train.loop.setup import OwnBatches, Training, set_up, share_outside
from gpq_agent.train.loop.side_effects import SideEffects
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.shutdown import is_out_of_memory, note_error
from gpq_agent.train.program import program

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
        self.shape = BatchShape(self._make_freedoms(), environment.replicas)
        self.steps = StepRecord()
        self.checkpointer = Checkpointer(self.runtime)
        self.side_effects = SideEffects(self.runtime, self.checkpointer.store)
        self.statistics = Statistics(self.runtime, self.shape)
        self.failures = FailureHandler(self)
        self.boundaries = StepBoundary(self)
        self.loop: Optional[TrainingLoop] = None
        self.own_batches: Optional[OwnBatches] = None
        self.norms = GroupedNorms()
        self.is_cleared = False

    def recall(self) -> None:
        """Recall what `gpq check` found, and what earlier attempts saw. The script has prepared its
        training, so its own modules are imported. Collective."""
        runtime = self.runtime
        if runtime.recorder is not None:
            runtime.recorder.program = program()
        proof = read_proof(runtime.environ, runtime.notice) if runtime.is_lead else None
        every_shape = proof is not None and set(proof.same) == set(wire.FREEDOMS)
        is_cleared = proof is not None and every_shape and proof.program == program().digest
        self.is_cleared = runtime.agreement.broadcast_flag(is_cleared)
        self.shape.freedoms.recall(proof, is_cleared=self.is_cleared)

    def attach(self, training: Training, *, watch: bool) -> TrainingLoop:
        """`job.prepare()` was called, after `job.loader()`, so everything follows the batch size.
        Collective. `watch`: look for habits of hand-written loops."""
        runtime, group = self.runtime, self.norms.groups.size
        if group:
            most = self.shape.keep_groups(group, is_checked=runtime.recorder is not None)
            if runtime.replicas > most:
                runtime.notice(IDLE.format(most, group, runtime.replicas))
        data = self.shape.data
        assert data is not None
        setup = set_up(training, data, runtime)
        self.norms.collect(training.models, setup.process_group)
        self.statistics.probes = [setup.probe]
        self.boundaries.watch = loop_watch = LoopWatch(self, setup)
        if not watch:
            loop_watch.stop()
        self.loop = loop = TrainingLoop(self, setup, loop_watch)
        if runtime.replicas > 1:
            share_outside(setup)
            self.shape.freedoms.agree()
        self.shape.reshape()
        self.checkpointer.is_ready = True
        for scheduler, clock in zip(training.schedulers, runtime.meter.schedules):
            wrap_scheduler(scheduler, clock, loop)
        if training.scaler is not None:
            wrap_scaler(training.scaler, loop.gate)
        if len(training.optimizers) > 1 and not data.limits.fixed:
            source = "all parameters"
            if len(training.measured) == 1:
                source = "the parameters of {}".format(type(training.measured[0]).__name__)
            runtime.notice("gpq measures gradient noise on {}".format(source))
        return loop

    def attach_steps(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> None:
        """`job.prepare()` was called without `job.loader()`. Collective."""
        self.refuse_groups()
        self.own_batches = OwnBatches(self.runtime, models, optimizers)
        if self.own_batches.trains_outside:
            self.lose("outside-parameters")
        self.shape.freedoms.agree()
        self.checkpointer.is_ready = True

    def refuse_groups(self) -> None:
        """The script makes its own batches. Raises GpqTrainError for groups of batch norm."""
        if self.norms.groups.size:
            problem = "batch_norm= needs job.loader(), which deals whole groups to the replicas"
            raise GpqTrainError(problem, "use job.loader(), or leave batch_norm= out")

    def training_loop(self) -> TrainingLoop:
        """Raises GpqTrainError before `job.prepare()`."""
        if self.loop is None:
            problem = "the loader was used before job.prepare()"
            raise GpqTrainError(problem, "call job.prepare(model, optimizer) first")
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

    def _make_freedoms(self) -> Freedoms:
        runtime = self.runtime
        accepted = set(filter(None, runtime.environ.get(wire.ENV_ACCEPTED, "").split(",")))
        for code in sorted(accepted - ACCEPTABLE):
            text = "--accept {} has no effect: only suspected habits can be accepted"
            runtime.notice(text.format(code))

        def tell(habit: wire.Habit) -> None:
            sys.stderr.write("gpq: {}\n".format(line(habit)))
            runtime.report.send("habit", habit._asdict())

        folder, rank = runtime.environment.checkpoint_dir, runtime.environment.rank
        return Freedoms(folder, runtime.agreement, rank, tell, accepted & ACCEPTABLE)


IDLE = (
    "a step has at most {} groups of batch_norm={}, so some of the {} GPUs compute nothing. Use "
    "fewer, or smaller groups"
)
# Errors that no micro-batch causes: files and networks, memory, a missing module.
OUTSIDE = (OSError, EOFError, MemoryError, ImportError, dist.DistError, GpqTrainError)
TRIED = "the loop failed on a batch that gpq made to look at its loss ({})"
# The end of another replica, which gloo reports as RuntimeError.
LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout")


class FailureHandler:
    """`memory`: what fitted, None without a folder for checkpoints."""

    def __init__(self, engine: Engine) -> None:
        folder = engine.runtime.environment.checkpoint_dir
        self.memory = MemoryRecord(folder) if folder else None
        self._engine = engine

    def failed(self, error: BaseException) -> None:
        """Called with the error before its traceback is shown."""
        environment = self._engine.runtime.environment
        if environment.run_dir:
            note_error(environment.run_dir, environment.rank, error)
        loop = self._engine.loop
        body = loop.failing() if loop is not None else None
        if loop is None or body is None:
            return
        step, micro = body
        if isinstance(error, RuinedWeights):
            self._excuse(RUINED)
            return
        if is_out_of_memory(error):
            # Let the next attempt ask for less.
            runtime, shape = self._engine.runtime, self._engine.shape
            if self.memory is not None and shape.data is not None:
                shortage = lessen(self.memory, step, shape.data.limits, may_cut=shape.may_cut)
                runtime.notice(shortage.line)
                if shortage.is_ours:
                    self._excuse(shortage.line)
            return
        is_proven = (loop.has_cut or len(step.micros) == 1) and not loop.in_trial
        # From outside the loop, or another replica's end: no cut batch causes that.
        is_outside = not isinstance(error, Exception) or isinstance(error, OUTSIDE)
        text = str(error).lower()
        is_lost = isinstance(error, RuntimeError) and any(words in text for words in LOST)
        if is_proven or is_outside or is_lost:
            return
        # The first step in micro-batches, or a trial: the loop probably cannot handle part of a
        # batch.
        words = "{} with {} of {} examples"
        detail = words.format(type(error).__name__, len(micro.indices), step.total)
        self._engine.shape.freedoms.record_locally(Habit("part-error", detail))
        if loop.in_trial:
            self._excuse(TRIED.format(detail))

    def _excuse(self, note: str) -> None:
        """The job starts again, without counting this as a failure of its own."""
        run_dir = self._engine.runtime.environment.run_dir
        if run_dir:
            with contextlib.suppress(OSError):  # then it counts as the job's fault
                wire.write_json(os.path.join(run_dir, wire.EXCUSED), {"note": note})


class Shortage(NamedTuple):
    """`line`: the message for the user. `is_ours`: the script alone would not have tried this
    size."""

    line: str
    is_ours: bool


def lessen(record: MemoryRecord, step: Step, limits: Limits, *, may_cut: bool) -> Shortage:
    """Reduce what later attempts may try.

    Each failing attempt then asks for less than the one before. `may_cut`: steps may be split into
    micro-batches.
    """
    if step.sampled:
        record.stop_sampling()
        line = (
            "out of memory in a step in which gpq measured the noise scale. gpq stops "
            "measuring it and keeps the batch size"
        )
        return Shortage(line, True)
    examples, own_share = max(step.counts), ceil_div(limits.base_batch, limits.replicas)
    if examples <= limits.group:
        text = (
            "out of memory with {} examples at once, which batch_norm={} keeps together. Use a "
            "smaller batch_norm"
        )
        return Shortage(text.format(examples, limits.group), False)
    is_cut = len(step.counts) > 1 and own_share <= limits.max_local
    bound = record.failed(examples, least=limits.group or 1)
    if examples > own_share or is_cut:
        text = (
            "out of memory with {} examples at once{}. gpq chose this number (the script alone "
            "uses {}), and uses at most {} from now on"
        )
        pieces = " in micro-batches" if is_cut else ""
        return Shortage(text.format(examples, pieces, own_share, bound), True)
    if not may_cut:
        text = (
            "out of memory with {} examples at once. The job needs more GPUs, because gpq "
            "cannot cut this loop's steps into micro-batches"
        )
        return Shortage(text.format(examples), False)
    text = "out of memory with {} examples at once, so the next attempt uses at most {}"
    return Shortage(text.format(examples, bound), False)
