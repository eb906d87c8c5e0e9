"""Runs around a micro-batch: before its body, and after it."""

from typing import Any, Callable, List, NamedTuple, Optional

import torch

from gpq_agent.train import internals
from gpq_agent.train.attempt.runtime import Runtime
from gpq_agent.train.attempt.setup import TrainingSetup
from gpq_agent.train.attempt.shape import BatchShape
from gpq_agent.train.attempt.statistics import Statistics, StepRecord
from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.data.sample_audit import Ledger
from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.optim.lr_rules import Adjustment
from gpq_agent.train.optim.step_gate import StepGate
from gpq_agent.train.runtime.agreement import SKIPPED

from .backward import BackwardCalls
from .first_part import FirstPart
from .weighing import Weighing


class LoopBegin(NamedTuple):
    """A loop over the loader. `by_next`: the script calls `next()`. `epoch`: of `job.epochs()`,
    None outside it."""

    by_next: bool
    epoch: Optional[int]


class TrainingLoop:
    """One per job, from `job.prepare()` on. `micro`: the current micro-batch. `has_cut`: a step in
    micro-batches was completed. `report` is called with the code of a habit and its detail."""

    def __init__(
        self,
        runtime: Runtime,
        setup: TrainingSetup,
        shape: BatchShape,
        watch: LoopWatch,
        report: Callable[..., None],
        steps: StepRecord,
        statistics: Statistics,
        ledger: Ledger,
        parts: Parts,
    ) -> None:
        self.micro: Optional[MicroBatch] = None
        self.has_cut = False
        self._runtime, self._setup, self._shape = runtime, setup, shape
        self._watch, self._report, self._steps = watch, report, steps
        self._statistics, self._ledger = statistics, ledger
        optimizers = setup.training.optimizers
        self.gate = StepGate(optimizers, setup.gradients, self, report, watch.rate_set)
        self.weighing = Weighing(setup.gradients, runtime.agreement, runtime.replicas)
        self._first_part = FirstPart(setup, parts, shape, report)
        self._backward = BackwardCalls(
            runtime,
            setup,
            report,
            statistics.times.clock,
        )
        self._dropped: Optional[MicroBatch] = None  # the script left the loop in this one
        self._is_new = True  # the script got nothing in this attempt yet
        self._opening: Optional[LoopBegin] = None  # of a loop in which no batch is used up yet
        self._is_first_unused = False  # the newest loop did not train in its first batch
        self._is_step_due = False  # the newest batch left gradients and made no step

    def failing(self) -> Optional[MicroBatch]:
        """The micro-batch whose body an error ends. The traceback may or may not keep the loop
        and the current micro-batch alive."""
        return self._dropped or (None if self._runtime.evaluation_failed else self.micro)

    def parameters(self) -> List[torch.nn.Parameter]:
        """The parameters of all optimizers, each once."""
        return self._setup.gradients.parameters()

    def gain(self) -> float:
        """What the current step is worth, in steps at the base batch size."""
        return self._setup.lr.gain

    def shared_metric(self, metric: Any) -> Any:
        """Rank 0's, so that replicas keep the same learning rate. Collective."""
        if self._runtime.replicas == 1 or self._runtime.finished:
            return metric
        self._runtime.agreement.call = "scheduler.step()"
        return self._runtime.agreement.broadcast(float(metric) if self._runtime.is_lead else None)

    # -- told by the loader ------------------------------------------------------------------------

    def loop_begins(self, opening: LoopBegin) -> None:
        """The script starts a loop over the loader."""
        self._opening = opening
        self.gate.note_rates()  # settings changed by now were changed outside

    def batch_begins(self, micro: MicroBatch) -> bool:
        """The script is about to get it. False: it gets the whole step again, in another shape."""
        setup, step = self._setup, micro.step
        if self._is_new and self._must_reshape(micro):
            return False
        self.micro = micro
        self._dropped = None
        self._runtime.evaluation_failed = self.weighing.called = False
        self._statistics.times.begin(step.configuration, first=micro.place == 0, usable=step.full)
        if micro.place == 0:
            self._begin_step(micro)
        if setup.training.scaler is not None and step.sampled:
            # The tensor itself: get_scale() would wait for the GPU.
            setup.probe.grad_scale = internals.scale_of(setup.training.scaler)
        replicas = self._runtime.replicas
        weight, even = step.weight(micro.place, replicas), step.is_even(replicas)
        setup.gradients.enter(micro.place, len(step.counts), weight, even=even)
        self.gate.enter(micro)
        if self._runtime.recorder is not None:
            self._runtime.recorder.entered(micro)
        if self._steps.is_watched:
            self._watch.batch_begins(micro, self._steps.count)
        return True

    def batch_ends(self, micro: MicroBatch, *, left_early: bool) -> bool:
        """The script is done with it. `left_early`: by a break or an error. Is it used up: did an
        optimizer step in it, or does the script ask for the next one?"""
        gradients, recorder = self._setup.gradients, self._runtime.recorder
        has_gradients = gradients.passes > 0
        is_used = self.gate.stepped or not left_early
        self._is_step_due = has_gradients and not self.gate.stepped and not left_early
        is_look = self._opening is not None and not (is_used or has_gradients)
        if left_early and not self._runtime.evaluation_failed:
            self._dropped = micro  # if an error ends the script, the loop may already be gone
        if self._runtime.finished or is_look:
            self.gate.leave()
            self._drop()
            return is_used
        if self._opening is not None:
            self._loop_trains(self._opening)
            self._is_first_unused = not (has_gradients or self.gate.stepped)
        if micro.last and not left_early and self._runtime.replicas > 1 and not has_gradients:
            self._meet_others()
        if not self.gate.stepped or self._runtime.evaluating:
            self._statistics.times.discard()
        if not left_early:
            self.weighing.check()
        self._statistics.times.end(synchronised=micro.last, tail=self._backward.tail)
        facts = self.gate.leave()
        steps = self._steps
        self._watch.batch_ends(
            micro, facts, steps.count, is_watched=steps.is_watched, left_early=left_early
        )
        self.has_cut = self.has_cut or (micro.last and micro.place > 0)
        self.micro = None
        if not is_used:
            self._drop()
            return False
        if not left_early:
            self._first_part.ends(micro)
        gradients.leave(drop=left_early)
        if recorder is not None:
            recorder.left(micro)
        # A batch that the loop skips trains nothing.
        real = facts.stepped or self._shape.freedoms.steps_by_hand
        if has_gradients or real:
            self._ledger.record_batch(micro.indices)
        if micro.last:
            self._setup.probe.finish()
            self._ledger.record_step()
            self._steps.end(real=real)
        return True

    # -- told by the step gate ---------------------------------------------------------------------

    def adjustment(self, optimizer: Any) -> Adjustment:
        """The learning rate and betas of this optimizer in the current step."""
        return self._setup.lr.adjustment(optimizer)

    def stepped(self, applied: bool) -> None:
        """The current step was made."""
        meter, gain = self._runtime.meter, self._setup.lr.gain
        if self._runtime.finished:
            self._runtime.reopen()
        if not applied:
            meter.skipped(gain)
            return
        meter.stepped(gain)
        self._statistics.say_ready()

    def outside(self) -> None:
        """An optimizer steps outside the loop over the loader. Raises GpqTrainError unless this is
        part of an evaluation, follows the training, or ends what the loop accumulated itself."""
        if self._runtime.evaluating or self._runtime.finished or self._is_step_due:
            self._is_step_due = False
            return
        if all(parameter.grad is None for parameter in self.parameters()):
            return  # nothing to apply: a usual first call before schedulers
        if self._is_first_unused and self._dropped is None:
            raise GpqTrainError(
                "a loader around job.loader() draws a batch ahead, so the last batch of an epoch "
                "trains after the loop over job.loader() has ended",
                "iterate over job.loader() itself, and move batches to the GPU in the loop",
            )
        raise GpqTrainError(
            "optimizer.step() was called outside the loop over job.loader()",
            "take every batch from a loop over job.loader(), and call optimizer.step() in its body",
        )

    def mean_loss(self, loss: Any) -> Any:
        """The mean over replicas of what a closure returned, by their examples."""
        replicas = self._runtime.replicas
        if replicas == 1 or loss is None:
            return loss
        self._runtime.agreement.call = "optimizer.step()"
        value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
        whole = self._runtime.agreement.all_reduce_sum([value * self._setup.gradients.weight])[0]
        mean = whole / replicas
        return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean

    # -- inside ------------------------------------------------------------------------------------

    def _loop_trains(self, opening: LoopBegin) -> None:
        """Its first batch is used up, so the loop was not only for a look."""
        self._opening = None
        if opening.by_next:
            self._report("own-next")
        if opening.epoch is None:
            self._report("own-epochs")

    def _drop(self) -> None:
        """Nothing of the current micro-batch counts."""
        self._setup.gradients.leave(drop=True)
        self._statistics.times.discard()
        if self._runtime.recorder is not None:
            self._runtime.recorder.taken_back()
        self.micro = None

    def _must_reshape(self, micro: MicroBatch) -> bool:
        """Models are as they are trained. Must their steps stay in one piece? Collective."""
        self._is_new = False
        self._watch.training_begins()
        return self._shape.agree() and len(micro.step.counts) > 1

    def _begin_step(self, micro: MicroBatch) -> None:
        setup, step = self._setup, micro.step
        if setup.reducer is not None:
            setup.reducer.share_buffers()
        self._statistics.declare(setup.training.rules, setup.training.models)
        self._ledger.begin_step()
        self.weighing.begin_step()
        setup.probe.arm(
            sampled=step.sampled and step.inverse > 0.0,
            micro_batches=len(step.counts),
            examples=step.total,
            inverse=step.inverse or 1.0,
        )
        self._first_part.begin_step(step)
        setup.lr.begin_step(step.total)
        self._shape.announce(step.configuration, self._runtime.report, self._factor)

    def _factor(self) -> float:
        return self._setup.lr.factor(self._setup.training.optimizers[0])

    def _meet_others(self) -> None:
        """A step had no backward pass. Either the other replicas had none either, however long they
        take, or they wait in theirs for this one forever."""
        runtime = self._runtime
        runtime.agreement.call = SKIPPED
        runtime.agreement.meet(lambda: runtime.pulse.others_wait(runtime.meter.steps))
