"""The steps of a job, for whoever runs its loop: `job.loader()`, or the adapter of a framework.

    import sys

    import torch
    import torch.nn.functional as F
    from torch.utils.data import TensorDataset, default_collate

    import gpq_agent.train as gpq
    from gpq_agent.train.loop.setup import make_training

    job = gpq.init(seed=0)
    inputs = torch.randn(150, 4)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    job.loader(dataset, batch_size=24, max_local_batch=6, fixed_batch=True)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    model = job.wrap(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    training = make_training(job.replicas, model, optimizer, scheduler, None, None)
    loop = job.attach(training, watch=False)

    for epoch in job.epochs(4):
        step = loop.next_step()
        while step is not None:
            for first in range(0, len(step.micros), 2):
                pair = step.micros[first : first + 2]
                examples = [[dataset[place] for place in micro.batch] for micro in pair]
                for micro, (x, y) in zip(pair, map(default_collate, examples)):
                    loop.begin_micro(micro)
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    loop.end_micro()
            loop.end_step(applied=True)
            step = loop.next_step()

    if job.rank == 0:
        torch.save(model.state_dict(), sys.argv[1])

Every replica makes the same calls in the same order. `next_step` is where gpq acts: it obeys
orders, saves, and may end the process. None: the epoch is over, which may be in the midst of a
pass over the data. A step has the batch that gpq chose, and lists what to fetch for each of its
micro-batches. Fetch them whenever you like: the
example draws two at a time. An empty micro-batch lists repeated examples, whose gradients weigh 0.

Between `begin_micro` and `end_micro` the body runs as for a whole batch, with a loss that is a mean
over the micro-batch. Gradients get their weights, and are in `p.grad` only in the last one. There
`optimizer.step()`, schedulers and a GradScaler take effect. Before, they do nothing, so the body
calls them in each.

`end_step` alone commits: the next attempt starts after its examples. A step that raised, or that
the body left, is not committed and comes again. `applied` is False if no optimizer stepped in it.

With `watch`, gpq looks for habits of hand-written loops. An adapter knows what its framework does,
and says so with `engine.lose(code, detail)`. `gpq show` names what it sets `statistics.adapter` to.
"""

import math
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

import torch

from gpq_agent.train import internals
from gpq_agent.train.data.batches import Configuration, Micro, Step
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.accumulator import Weighing, listen
from gpq_agent.train.gradients.lr_rules import Adjustment
from gpq_agent.train.gradients.progress import ROUNDING
from gpq_agent.train.gradients.step_gate import BodyFacts, StepGate
from gpq_agent.train.habits.table import HABITS
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.loop.first_part import FirstPart
from gpq_agent.train.loop.setup import TrainingSetup
from gpq_agent.train.process.agreement import LOOP, SKIPPED

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine
    from gpq_agent.train.prove.trial import Trial


class TrainingLoop:
    """One per job, from `job.prepare()` on.

    step: the newest one. micro: the current micro-batch, None outside a body.
    applied: did an optimizer step in the newest body, or the script by hand?
    has_cut: a step in micro-batches was completed.
    in_trial: the newest body does not count, and it runs or was left.
    """

    def __init__(self, engine: "Engine", setup: TrainingSetup, watch: LoopWatch) -> None:
        self.step: Optional[Step] = None
        self.micro: Optional[Micro] = None
        self.applied = self.has_cut = self.in_trial = False
        # The learning rate and betas of an optimizer in the current step.
        self.adjustment: Callable[[Any], Adjustment] = setup.lr.adjustment
        self._engine, self._setup, self._watch = engine, setup, watch
        self._runtime, self._shape, self._steps = engine.runtime, engine.shape, engine.steps
        self._times, self._ledger = engine.statistics.times, engine.boundaries.ledger
        self._sampler = setup.data.sampler
        self._norms = engine.norms if engine.norms.groups.size else None
        self.gate = StepGate(
            setup.training.optimizers, setup.gradients, self, engine.lose, watch.rate_set
        )
        self._weighing = Weighing(setup.gradients, self._runtime.agreement, self._runtime.replicas)
        self._first_part = FirstPart(setup, engine.checkpointer.parts, engine.shape, engine.lose)
        # When the gradients of the newest backward pass were ready, here and everywhere.
        self._tail: Optional[Tuple[Any, ...]] = None
        self._trial: Optional["Trial"] = None  # None in a body that counts
        listen(self)
        self._failed: Optional[Tuple[Step, Micro]] = None  # the body that the script left
        self._is_new = True  # there was no step in this attempt yet
        self._facts: Optional[BodyFacts] = None  # of the newest body
        self._trained: List[int] = []  # examples of the current step that it trained on so far
        self._configuration: Optional[Configuration] = None  # of the newest step
        # By next(), and in which epoch, a loop began in which no batch is used up yet.
        self._opening: Optional[Tuple[bool, Optional[int]]] = None
        self._is_first_unused = False  # the newest loop did not train in its first batch
        self._is_step_due = False  # the newest batch left gradients and made no step

    # -- the contract ------------------------------------------------------------------------------

    def next_step(self) -> Optional[Step]:
        """Obeys gpq, writes a checkpoint if one is due, and returns what to do next. None: the
        epoch is over. Collective. Does not return if the attempt ends."""
        meter, sampler = self._runtime.meter, self._sampler
        if self.is_over:
            return None
        if not meter.passes and sampler.is_over:
            self._engine.boundaries.close_pass(sampler.size)
        if not self._runtime.finished:
            self._engine.boundaries.run()
        if self._is_new:  # models are as they are trained
            self._is_new = False
            self._watch.training_begins()
            self._shape.agree()
        self.step = sampler.next_step()
        if self.step is not None:
            most = math.inf
            if meter.epoch == meter.epochs - 1 and not meter.passes:
                # What is left of the last epoch, so that schedules end exactly.
                most = sampler.base_steps - meter.position
            self._setup.lr.begin_step(self.step.total, most)
        self._times.start()
        return self.step

    def ends_epoch(self) -> bool:
        """Asked before the newest step is made, if the batch may grow: is the epoch over after
        it?"""
        position = self._runtime.meter.position + self._setup.lr.gain
        return position >= self._sampler.base_steps - ROUNDING

    def begin_micro(self, micro: Micro) -> None:
        """The body for this micro-batch is about to run. Its data have arrived."""
        setup, step = self._setup, self.step
        assert step is not None
        self.micro = micro
        self._failed, self.in_trial = None, False
        self._runtime.evaluation_failed = self._weighing.called = False
        self._times.begin(step.configuration, first=micro.place == 0, usable=step.full)
        if micro.place == 0:
            self._begin_step(step)
        if step.sampled and setup.training.scaler is not None:
            # The tensor itself: get_scale() would wait for the GPU.
            setup.probe.set_scale(internals.scale_of(setup.training.scaler))
        setup.gradients.enter(micro)
        if self._norms is not None and not self._runtime.evaluating:
            self._norms.enter(len(micro.batch))
        self.gate.enter(micro)
        if self._runtime.recorder is not None:
            self._runtime.recorder.enter(step, micro)
        if self._steps.is_watched and micro.place == 0:
            self._watch.step_begins(self._steps.count)

    def end_micro(self, *, left_early: bool = False) -> bool:
        """The body is over. `left_early`: by a break or an error.

        Is the micro-batch used up: did an optimizer step in it, or does the script ask for the next
        one? Otherwise nothing of its step counts.
        """
        step, micro, gradients = self.step, self.micro, self._setup.gradients
        runtime, steps, stepped = self._runtime, self._steps, self.gate.stepped
        assert step is not None
        assert micro is not None
        has_gradients, is_used = gradients.passes > 0, stepped or not left_early
        self._is_step_due = has_gradients and not stepped and not left_early
        is_look = self._opening is not None and not (is_used or has_gradients)
        if left_early and not runtime.evaluation_failed:
            self._failed = step, micro
        if runtime.finished or is_look:
            self.gate.leave()
            self._drop()
            return is_used
        if self._opening is not None:  # its first batch is used up: the loop was not only a look
            by_next, epoch = self._opening
            self._opening, self._is_first_unused = None, not (has_gradients or stepped)
            if by_next:
                self._engine.lose("own-next")
            if epoch is None:
                self._engine.lose("own-epochs")
        if micro.last and not (left_early or has_gradients) and runtime.replicas > 1:
            # Either the other replicas had no backward pass either, however long they take, or they
            # wait in theirs for this one forever.
            runtime.agreement.call = SKIPPED
            runtime.agreement.meet(lambda: runtime.pulse.others_wait(runtime.meter.steps))
        if not stepped or runtime.evaluating:
            self._times.discard()
        if self._weighing.is_used and not left_early:
            self._weighing.check()
        self._times.end(synchronised=micro.last, tail=self._tail)
        facts, previous_facts = self.gate.leave(), self._facts
        self._facts = facts
        # A body that does what the one before did shows nothing new.
        is_new = left_early or facts != previous_facts or self._watch.foreign_steps
        if steps.is_watched or is_new:
            self._watch.batch_ends(
                micro, facts, steps.count, is_watched=steps.is_watched, left_early=left_early
            )
        self.has_cut = self.has_cut or (micro.last and micro.place > 0)
        if not is_used:
            self._drop()
            return False
        if self._first_part.before is not None and not left_early:
            self._first_part.ends(step)
        gradients.leave(drop=left_early)
        self._use_up(micro, facts)
        return True

    def end_step(self, *, applied: bool) -> None:
        """All micro-batches of the step are done, so the next attempt starts after it. `applied`:
        an optimizer stepped."""
        assert self.step is not None
        if self._setup.probe.is_sampled:
            self._setup.probe.finish()
        self._ledger.record_step(self._trained)
        self._steps.end(real=applied)
        if self._sampler.commit(self.step):
            meter = self._runtime.meter
            meter.samples += self.step.total
            meter.position += self._setup.lr.gain

    # -- of a loop over job.loader() ---------------------------------------------------------------

    def begin_loop(self, *, by_next: bool) -> Optional[int]:
        """The script starts a loop over the loader, or calls next() on it (`by_next`). Collective.

        Returns the epoch of `job.epochs()`, or None if this loop is not part of it. Raises
        GpqTrainError in the body of another such loop.
        """
        if self.in_body:
            raise GpqTrainError(
                "a loop over the loader started while another one is still in a batch",
                "use one loop at a time. To look at the data, call next(iter(loader)) and do "
                "not keep the iterator",
            )
        runtime = self._runtime
        self._opening = by_next, runtime.epoch
        self.gate.note_rates()  # settings changed by now were changed outside
        if not (runtime.evaluating or runtime.finished):
            runtime.agreement.call = LOOP
            runtime.agreement.meet()
        return runtime.epoch

    def begin_trial(self, trial: "Trial", micro: Micro) -> None:
        """A body is about to run that does not count. It makes no step, and its gradients stay on
        this replica."""
        self.micro, self._trial, self.in_trial = micro, trial, True
        self.gate.enter(micro)
        if self._norms is not None:
            self._norms.enter(len(micro.batch))
        if self._setup.reducer is not None:
            self._setup.reducer.suspend()

    def end_trial(self, *, left_early: bool) -> None:
        """The body is over. `left_early`: by a break or an error."""
        self.gate.leave()
        if self._norms is not None:
            self._norms.leave(drop=False)
        if self._setup.reducer is not None:
            self._setup.reducer.leave()
        if left_early and self.step is not None and self.micro is not None:
            self._failed = self.step, self.micro
        self.in_trial = left_early
        self.micro = self._trial = None

    @property
    def is_over(self) -> bool:
        """Is the running epoch over?"""
        meter = self._runtime.meter
        if meter.passes:
            return self._sampler.is_over
        return meter.position >= self._sampler.base_steps - ROUNDING

    @property
    def in_body(self) -> bool:
        """Is the script in a micro-batch, and not in an evaluation?"""
        return self.micro is not None and not self._runtime.evaluating

    def failing(self) -> Optional[Tuple[Step, Micro]]:
        """The step and the micro-batch whose body an error ends. The traceback may or may not keep
        the loop and the current micro-batch alive."""
        if self._failed is not None:
            return self._failed
        if self.step is None or self.micro is None or self._runtime.evaluation_failed:
            return None
        return self.step, self.micro

    def weigh(self, amount: float) -> None:
        """The current micro-batch weighs this much instead of its examples."""
        if self._trial is not None:
            self._trial.weight = float(amount)
        elif self.micro is not None:
            self._weighing.weigh(self.micro, amount)

    def parameters(self) -> List[torch.nn.Parameter]:
        """The parameters of all optimizers, each once."""
        return self._setup.gradients.parameters()

    # -- told by torch, the step gate and the schedulers -------------------------------------------

    def backward_begins(self) -> None:
        """A backward pass is about to run."""
        if not self._runtime.evaluating:
            (self._trial or self._setup.gradients).backward_begins()

    def backward_ends(self) -> None:
        """Not called after a pass that failed."""
        if self._runtime.replicas > 1:
            self._runtime.pulse.reduces(False)
        if self._runtime.evaluating:
            return
        if self._trial is not None:
            self._trial.backward_ends()
            return
        gradients, probe = self._setup.gradients, self._setup.probe
        gradients.backward_ends()
        if self._norms is not None and self.micro is not None:
            self._norms.pass_ended(len(self.micro.indices), last=self.micro.last)
        if gradients.repeats:
            self._engine.lose("two-passes")
        if self._runtime.replicas == 1 or not gradients.last:
            self._tail = ()  # nothing to wait for
        elif probe.last_ready is None:
            self._tail = None
        else:
            self._tail = (probe.last_ready, self._times.clock.mark())

    def gain(self) -> float:
        """What the current step is worth, in steps at the base batch size."""
        return self._setup.lr.gain

    def stepped(self, applied: bool) -> None:
        """The current step was made."""
        if self._runtime.finished:
            self._runtime.reopen()
        self._runtime.meter.stepped(self._setup.lr.gain, applied=applied)
        if applied and not self._steps.count:
            self._engine.statistics.say_ready()

    def outside(self) -> None:
        """An optimizer steps outside the loop over the loader. Raises GpqTrainError unless this is
        part of an evaluation, follows the training, or ends what the loop accumulated itself."""
        if self._runtime.evaluating or self._runtime.finished or self._is_step_due:
            self._is_step_due = False
            return
        if all(parameter.grad is None for parameter in self.parameters()):
            return  # nothing to apply: a usual first call before schedulers
        if self._is_first_unused and self._failed is None:
            raise GpqTrainError(
                "a loader around job.loader() draws a batch ahead, so the last batch of an epoch "
                "trains after the loop over job.loader() has ended",
                "iterate over job.loader() itself, and move batches to the GPU in the loop",
            )
        raise GpqTrainError(
            "optimizer.step() was called outside the loop over job.loader()",
            "take every batch from a loop over job.loader(), and call optimizer.step() in its body",
        )

    def shared_metric(self, metric: Any) -> Any:
        """Rank 0's, so that replicas keep the same learning rate. Collective."""
        if self._runtime.replicas == 1 or self._runtime.finished:
            return metric
        self._runtime.agreement.call = "scheduler.step()"
        return self._runtime.agreement.broadcast(float(metric) if self._runtime.is_lead else None)

    def alone(self, code: str) -> None:
        """The loop has this habit. Raises GpqTrainError unless one replica has the whole batch at
        once."""
        assert self.micro is not None
        if self._runtime.replicas == 1 and not self.micro.in_pieces:
            self._engine.lose(code)
            return
        habit = HABITS[code]
        words = "{}, which gpq can do only on one GPU with the whole batch at once"
        hint = "{}. Or use gpq submit --gpus 1, and leave out max_local_batch".format(habit.cure)
        raise GpqTrainError(words.format(habit.message), hint)

    def _use_up(self, micro: Micro, facts: BodyFacts) -> None:
        self.micro = None
        norms = self._norms
        if norms is not None:
            if not facts.has_gradients:
                norms.pass_ended(len(micro.indices), last=micro.last)
            if norms.stray:
                self._engine.lose("batch-norm", norms.stray)
            norms.leave(drop=False)
        if self._runtime.recorder is not None:
            self._runtime.recorder.left(micro)
        self.applied = facts.stepped or self._shape.freedoms.noticed("hand-step")
        if facts.has_gradients or self.applied:  # a batch that the loop skips trains nothing
            self._trained += micro.indices
        if not micro.last:
            self._times.start()

    def _drop(self) -> None:
        """Nothing of the current micro-batch counts."""
        self._setup.gradients.leave(drop=True)
        if self._norms is not None:
            self._norms.leave(drop=True)
        self._times.discard()
        if self._runtime.recorder is not None:
            self._runtime.recorder.taken_back()
        self.micro = None

    def _begin_step(self, step: Step) -> None:
        setup, statistics = self._setup, self._engine.statistics
        if setup.reducer is not None:
            setup.reducer.share_buffers()
        if self._norms is not None:
            self._norms.begin_step()
        if not self._steps.count:
            statistics.declare(setup.training.rules, setup.training.models)
        self._trained = []
        self._weighing.is_used = False
        setup.probe.weights = 0.0
        if step.sampled or setup.probe.is_sampled:
            setup.probe.arm(
                sampled=step.sampled,
                micro_batches=len(step.micros),
                examples=step.total,
                inverse=step.inverse or 1.0,
            )
        if len(step.micros) > 1 or self._first_part.before is not None:
            self._first_part.begin_step(step)
        if step.configuration is not self._configuration:
            self._configuration = step.configuration
            factor = setup.lr.factor(setup.training.optimizers[0])
            self._shape.announce(step.configuration, self._runtime.report, factor)
