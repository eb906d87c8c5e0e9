"""What happens between two optimizer steps, and around each micro-batch: orders, checkpoints, stops, measurements.

Acts alike on every replica, because it acts only on what all have agreed on. Knows nothing of the script's loop.
"""

import contextlib
import os
import sys
import time
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent import wire

from . import check, internals
from .agreement import Agreement, Proposal
from .batches import Configuration, Limits, ordered
from .checkpoint import CheckpointStore, MemoryRecord
from .control import ControlReader
from .environment import Environment, seconds_since_launch
from .errors import GpqTrainError
from .events import (
    BackwardBegin,
    BatchBegin,
    BatchEnd,
    Boundary,
    EpochBegin,
    Failure,
    FirstPartEnd,
    GradientFacts,
    LoopBegin,
    Meeting,
    SchedulerCall,
    SettingsChange,
    StepCall,
    StepOutside,
)
from .gradients import Gradients
from .habits.freedoms import Freedoms, line
from .habits.observers import JobView, Observers
from .habits.registry import OBSERVERS, OF_OTHER_LOOPS
from .habits.table import ACCEPTABLE, ACCUMULATE, SPLIT, Habit, described, is_suspected
from .leaving import again, leave, part_company
from .ledger import Ledger
from .noise_scale import NoiseScale
from .passes import listen
from .probe import GradientProbe
from .progress import ProgressMeter
from .proof import program
from .proof import read as read_proof
from .publish import Publisher, declaration
from .pulse import Pulse
from .reducing import Reducer
from .report import Reporter
from .restore import Parts
from .sampler import SAMPLE_EVERY, GlobalSampler, Issued
from .scaling import UNCHANGED, Adjustment, Rule, betas_power
from .shortage import lessen
from .stepping import StepGate
from .stopping import EXIT_CODES, STOP_ORDERED, STOP_SIGNAL, Terminator, is_out_of_memory, note_error
from .timing import StepClock, StepTimes
from .trial import Trial

AGREE_SECONDS = 0.2  # agree on orders about so often, at most once a step
MAX_PAUSE = 50  # steps between agreements
SAMPLE_COST = 0.005  # share of the training time that gradient statistics may take
SAMPLE_RANGE = (5, 50)  # steps
RETRY_SECONDS = 5.0  # until a stop whose checkpoint could not be written is tried again
WATCHED_STEPS = 3  # of an attempt, after each of which replicas tell each other what they have seen of the loop
MEET_SECONDS = 15.0  # that a replica may wait in its backward pass for one that had none
MEET_AT_MOST = 600.0  # that replicas may be apart in a step without one: of other servers it is not seen what they do
MOST_PENDING = 64  # steps of the loader that a loop may put into one of its own before a stop no longer waits for it


class Engine:
    """One per job; a loader and a training set-up are attached when the script has made them."""

    def __init__(self, environment: Environment, device: torch.device, environ: Mapping[str, str]) -> None:
        self.environment, self._environ = environment, environ
        self.check = check.begin(environ, environment)
        lead = environment.rank == 0
        run_dir = environment.run_dir
        self.report = Reporter(os.path.join(run_dir, wire.REPORT) if run_dir and lead else "", environ)
        self.pulse = Pulse(run_dir, environment.rank)
        # Orders travel on a group of their own: they must never be matched with a collective of the script.
        self.group = dist.new_group(backend="gloo") if environment.replicas > 1 else None
        self.agreement = Agreement(self.group, environment.rank, self._propose)
        self.meter = ProgressMeter()
        self.ledger = Ledger()
        self.parts = Parts()
        self._refusals: Set[str] = set()  # of checkpoints, that were told
        self.evaluating = 0
        self.evaluation_failed = False  # in this micro-batch: it was not training that ran out of memory
        self.stopping = 0
        folder = environment.checkpoint_dir
        self.store = CheckpointStore(folder) if folder else None
        self.memory = MemoryRecord(folder) if folder else None
        self.measures = True  # the noise scale: there is memory for that
        self.micro: Optional[Issued] = None
        self._abandoned: Optional[Issued] = None  # the script left the loop in this one
        self.publisher = Publisher(self.report, self.agreement, environment.nodes, environment.replicas)
        self._control = ControlReader(run_dir, environment.attempt) if run_dir and lead else None
        self._terminator = Terminator(environment.local_replicas)
        self._device = device
        self._times = StepTimes(StepClock(device))
        self._limits: Optional[Limits] = None
        self._sampler: Optional[GlobalSampler] = None
        self._noise: Optional[NoiseScale] = None
        self._gate: Optional[StepGate] = None
        self._probe: Optional[GradientProbe] = None
        self._gradients: Optional[Gradients] = None
        self._models: List[torch.nn.Module] = []
        self._optimizers: List[Any] = []
        self._rules: Dict[int, Rule] = {}
        self._scale_betas = True
        self._scaler: Any = None
        accepted = {code for code in environ.get(wire.ENV_ACCEPTED, "").split(",") if code}
        for code in sorted(accepted - ACCEPTABLE):
            self.notice("--accept {} changes nothing: gpq suspects no such habit".format(code))
        self.freedoms = Freedoms(folder, self.agreement, environment.rank, self._tell_habit, accepted & ACCEPTABLE)
        self.in_epochs = False  # of job.epochs()
        self.epoch = 0  # that it has given last
        self._renewed = False  # what the data loader has fetched ahead is of another shape than it should be
        self._reshape_later = False  # at the next step
        self._asked: Optional[Configuration] = None  # before freedoms that are lost
        self._checked = False  # layers were looked at
        self._observers = Observers((), JobView([], [], list), self.report_habit, self.notice)
        self._asks_reached = False  # an observer asks whether the pass that runs reaches parameters
        self._trial: Optional[Trial] = None
        self._trial_epoch = -1
        self._shares: Optional[Reducer] = None  # of a loop without a loader
        self.training = False  # prepared: there is something to save
        self.steps_wanted = 0  # of a loop without a loader, 0 = not known
        self._steps_here = 0  # of this attempt
        self._weights_changed = False  # by the newest step
        self._pending = 0  # steps of the loader since the last real step
        self._stop_waits = 0  # of which kind, until rank 0 is between two steps of the loop's own
        self._opening: Optional[LoopBegin] = None  # the loop that has begun, until it trains
        self._first = False  # the micro-batch in hand is the first of a loop
        self._looked_at = False  # the script has dropped the first batch of a loop, and nothing since
        self._look_used = False  # and has trained on it
        self._weighed = False  # job.weigh() is used in the step in hand
        self._weighed_here = False  # and was called in this micro-batch
        self._unit = 1.0  # of its weights, on this replica
        self._amount = 0.0
        self._declared = False
        self._ready = False
        self._finished = False
        self._gain = 1.0
        self._tail: Optional[Tuple[Any, ...]] = None
        self._applied = 0  # seq of the order in force
        self._announced: Optional[Configuration] = None  # last reported as in effect
        self._retry_at = 0.0
        self._probe_notice = ""
        self._step_begin = 0.0
        self._step_seconds = 0.0  # smoothed
        self.restore_seconds = 0.0

    # -- set-up --------------------------------------------------------------------------------------------------------

    def attach_data(self, limits: Limits, sampler: GlobalSampler, noise: NoiseScale) -> None:
        self._limits, self._sampler, self._noise = limits, sampler, noise
        if not self.measures:
            sampler.sample_every = 0

    def attach_training(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[Any],
        rules: Sequence[Rule],
        scaler: Any,
        *,
        measured: Sequence[Any],
        scale_betas: bool,
    ) -> StepGate:
        """Hook into the gradients of the models and the steps of the optimizers. `measured`: those of the optimizers on
        whose parameters gradient noise is measured. Collective."""
        assert self._noise is not None
        replicas = self.environment.replicas
        self._models, self._optimizers = list(models), list(optimizers)
        self._rules = {id(optimizer): rule for optimizer, rule in zip(optimizers, rules)}
        self._scaler, self._scale_betas = scaler, scale_betas
        wrapped = [each for each in models if isinstance(each, DistributedDataParallel)]
        group = wrapped[0].process_group if wrapped else None
        self._probe = GradientProbe(measured, self._noise, replicas, group)
        self._probe.arrived = lambda: self.pulse.phase("arrived")
        reducer = Reducer(wrapped, self._probe, self.group, replicas) if replicas > 1 else None
        self._gradients = Gradients(optimizers, self._probe, reducer)
        self._gate = StepGate(optimizers, self._gradients, self)
        view = self._view(optimizers)
        self._observers = Observers(
            OBSERVERS,
            view._replace(own_comm_hook=reducer is not None and reducer.own_hooks),
            self.report_habit,
            self.notice,
        )
        listen(self)
        self._recall()
        self._observers.attempt_begins()
        if reducer is not None:
            self._share_strangers(wrapped)
            self.freedoms.agree()
        self._reshape()
        self.training = True
        return self._gate

    def _view(self, optimizers: Sequence[Any]) -> JobView:
        """What observers may look at."""
        gradients = self._gradients.held if self._gradients is not None else list
        noticed = self.freedoms.noticed
        parts = self.parts.held()
        return JobView(self._models, list(optimizers), self.parameters, parts, gradients, noticed, self._in_batch)

    def _in_batch(self) -> bool:
        """Is the script at work on a micro-batch, and not on an evaluation?"""
        return self.micro is not None and not self.evaluating

    def _recall(self) -> None:
        """What gpq check found, and what earlier attempts saw."""
        if self.check is not None:
            self.check.program = program()
        lead = self.environment.rank == 0
        self.freedoms.recall(read_proof(self._environ, self.notice) if lead else None)

    def attach_steps(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> None:
        """For loops without a loader of ours: gradients and steps are the script's own; replicas may have unlike shares."""
        self._models = list(models)
        wrapped = [each for each in models if isinstance(each, DistributedDataParallel)]
        if wrapped:
            probe = GradientProbe(optimizers, NoiseScale(1, 0), self.environment.replicas, wrapped[0].process_group)
            self._shares = Reducer(wrapped, probe, self.group, self.environment.replicas)
            self._shares.follow()
        self._recall()
        self._observers = Observers(OF_OTHER_LOOPS, self._view(optimizers), self.report_habit, self.notice)
        self._observers.attempt_begins()
        self.freedoms.agree()
        self.training = True
        listen(self)

    def share_weight(self, weight: float, *, even: bool = True) -> None:
        """On the gradients of this replica until the next one. `even`: it is 1 on every replica. Raises GpqTrainError where it
        cannot be obeyed."""
        if self._shares is None:
            return
        if self._shares.own_hooks and not even:
            raise GpqTrainError(
                "the model has a communication hook of its own, which averages unlike shares of a batch as if they were alike",
                "leave the hook out, or draw batches that divide by the number of replicas",
            )
        self._shares.weight = weight

    def _share_strangers(self, wrapped: Sequence[DistributedDataParallel]) -> None:
        """Parameters outside the wrapped models begin as on rank 0, as those inside do."""
        assert self._gradients is not None
        inside = {item for each in wrapped for item in each.module.parameters()}
        with torch.no_grad():
            for item in self._gradients.parameters():
                if item not in inside:
                    dist.broadcast(item.detach(), src=0, group=wrapped[0].process_group)

    def _tell_habit(self, habit: wire.Habit) -> None:
        sys.stderr.write("gpq: {}\n".format(line(habit)))
        self.report.send("habit", habit._asdict())

    def parameters(self) -> List[Any]:
        """Of all optimizers that were prepared, each once."""
        return self._gradients.parameters() if self._gradients is not None else []

    def notice(self, message: str) -> None:
        """A line for the user: in the log, and up."""
        if self.environment.rank == 0:
            sys.stderr.write("gpq: {}\n".format(message))
            self.report.notice(message)

    def declare(self) -> None:
        """Say once what the script is."""
        if self._declared:
            return
        self._declared = True
        content = wire.Declared(level="resizable")
        if self._limits is not None and self._sampler is not None and self._rules:
            rule = ", ".join(dict.fromkeys(each.name for each in self._rules.values()))
            content = declaration(self._limits, self._sampler.size, self.meter.epochs, rule, self._models)
        self.report.send("declared", content._asdict())

    # -- between steps -------------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Obey what was agreed on. Does not return when that is a stop, unless nothing could be saved."""
        again()
        if self.evaluating:
            return
        self._reopen()
        self._compare_notes()
        if self._reshape_later:
            self._reshape()
        if self.environment.checkpoint_dir:
            self._terminator.arm()
        self.pulse.beat(self.meter.steps, "arrived")
        if self.check is not None and not self._in_midst():
            self.check.boundary(self)
        agreed = self.agreement.step() if self.check is None else self.check.agreed()
        if agreed is not None:
            self._obey(agreed)
        elif self._stop_waits:
            self._stop(self._stop_waits)
        store = self.store
        if store is not None and self.environment.rank == 0 and self.training and store.due() and not self._in_midst():
            self.save("periodic")
        self.pulse.phase("computing")
        self._step_begin = time.perf_counter()

    def _obey(self, agreed: Proposal) -> None:
        if self._sampler is not None and self._limits is not None:
            if agreed.seq > self._applied:
                self._asked = ordered(self._limits, agreed.seq, agreed.atomic_batch, agreed.accum_steps)
                self._sampler.configure(self.freedoms.allowed(self._asked, self._limits))
            self._sampler.sample_every = 0 if self._may_not_split() else agreed.sample_every
        self._applied = max(self._applied, agreed.seq)
        self.stopping = agreed.stop
        if agreed.report:
            if self.freedoms.agree() and self._gate is not None:
                self._reshape()
            self.publish()
        if agreed.report > 1:
            self.publisher.ranks(self._times, self.meter.steps)
        if agreed.stop and self.training:
            self._stop(agreed.stop)

    def _in_midst(self) -> bool:
        """Is this replica in the midst of a step that the loop makes of several of the loader's? A checkpoint would lose
        what it has accumulated. Replicas may differ, where one leaves a step out: rank 0's answer counts."""
        return 0 < self._pending < MOST_PENDING

    def _may_not_split(self) -> bool:
        return SPLIT in self.freedoms.lost and self.environment.replicas == 1

    def _reshape(self) -> None:
        """Freedoms are lost: the steps to come need none of them, and what was fetched ahead is fetched anew."""
        assert self._sampler is not None
        assert self._limits is not None
        self._reshape_later = False
        if self._asked is None:
            self._asked = self._sampler.configuration
        self._sampler.configure(self.freedoms.allowed(self._asked, self._limits))
        if self._may_not_split():
            self._sampler.sample_every = 0
        if ACCUMULATE in self.freedoms.lost:
            self._sampler.keep_whole()
        self._renewed = True

    def renewed(self) -> bool:
        """Must the data loader begin anew at the cursor? True once each time."""
        renewed, self._renewed = self._renewed, False
        return renewed

    def _compare_notes(self) -> None:
        """Have all replicas seen the same? After the first steps of an attempt; alone, whenever there is something."""
        changed, self._weights_changed = self._weights_changed, False
        self._observers.boundary(Boundary(self._steps_here, changed))
        replicas = self.environment.replicas
        if self._gate is None or (self._steps_here > WATCHED_STEPS and replicas > 1):
            return
        if replicas > 1 and self._steps_here:
            self._observers.meet(Meeting(self._steps_here, epoch_ends=False), self.agreement.gather)
        if (replicas > 1 or self.freedoms.waiting) and self.freedoms.agree():
            self._reshape()

    def _propose(self) -> Proposal:
        order = self._control.order if self._control is not None else None
        order = order or wire.Control(attempt=0, seq=0)
        stop = STOP_ORDERED if order.stop else 0
        stop = STOP_SIGNAL if self._terminator.requested else stop
        if time.monotonic() < self._retry_at:
            stop = 0
        pause = int(AGREE_SECONDS / self._step_seconds) if self._step_seconds else 1
        return Proposal(
            seq=order.seq,
            stop=stop,
            atomic_batch=max(order.atomic_batch, 0),
            accum_steps=max(order.accum_steps, 0),
            report=int(self.report.due()) * (2 if self.report.window_due() else 1),
            sample_every=self._sample_every(),
            pause=min(max(pause, 1), MAX_PAUSE),
        )

    def _sample_every(self) -> int:
        """So that statistics cost SAMPLE_COST of the time; a split batch costs more than the probe can see."""
        if self._limits is None or self._limits.fixed or not self.measures:
            return 0
        if self.environment.replicas == 1 or self._probe is None or not self._step_seconds:
            return SAMPLE_EVERY
        every = int(self._probe.cost / (SAMPLE_COST * self._step_seconds)) + 1
        return min(max(every, SAMPLE_RANGE[0]), SAMPLE_RANGE[1])

    def publish(self) -> None:
        """Combine the statistics of all replicas and report them. Collective."""
        if self._probe is not None:
            self._probe.collect()
            if self._probe.notice and self._probe.notice != self._probe_notice:
                self._probe_notice = self._probe.notice
                self.notice(self._probe.notice)
        current = (0, 0)
        if self._sampler is not None:
            configuration = self._sampler.configuration
            current = (configuration.atomic_batch, configuration.accum_steps)
        self.publisher.publish(self._times, current, self._noise, self.progress())

    def progress(self) -> wire.Progress:
        if self._sampler is None:
            fraction = min(self.meter.steps / self.steps_wanted, 1.0) if self.steps_wanted else 0.0
            return wire.Progress(0, 0, 0, self.meter.steps, round(self.meter.base_steps, 3), round(fraction, 6))
        return self.meter.at(self._sampler.cursor, self._sampler.size)

    # -- saving and stopping -------------------------------------------------------------------------------------------

    def save(self, why: str) -> bool:
        """Write a checkpoint (rank 0 only). False, and a notice, when the disk does not take it."""
        if self.store is None:
            return False
        self.pulse.phase("saving")
        try:
            saved = self.store.save(self.parts.state(), self.meter.steps, self.environment.attempt, why)
        except Exception as error:  # a full disk, or a part that cannot be saved: the others must not wait for rank 0
            self.store.postpone()
            self.notice("cannot write a checkpoint: {}".format(" ".join((str(error) or repr(error)).split())))
            return False
        if saved.refusal and saved.refusal not in self._refusals:
            self._refusals.add(saved.refusal)
            self.notice("the next attempt will not go on from this: {}".format(saved.refusal))
        content = {"step": self.meter.steps, "seconds": round(saved.seconds, 4), "bytes": saved.size, "why": why}
        self.report.send("checkpoint", content)
        return True

    def _count_examples(self) -> None:
        """Hold what all replicas did since the last time against the order of the data. Collective."""
        if self._sampler is not None:
            totals = self.agreement.total(self.ledger.counted())
            self.ledger.compare(totals, self._sampler.order(), self._sampler.cursor.consumed)

    def begin_epoch(self, epoch: int) -> None:
        """job.epochs() is about to give this one."""
        self.epoch = epoch
        if self._sampler is not None:
            self._observers.epoch_begins(EpochBegin(epoch, whole=self._sampler.cursor.consumed == 0))

    def place_asked(self) -> None:
        """The script has asked how far it is in the epoch: what it does at the head of one, it does by that."""
        self._observers.place_asked()

    def close_epoch(self) -> None:
        """The running epoch is over on every replica. Collective."""
        again()
        self._observers.epoch_ends()
        if self.environment.replicas > 1:
            self._observers.meet(Meeting(self._steps_here, epoch_ends=True), self.agreement.gather)
        if self.freedoms.agree() and self._gate is not None:
            self._reshape()
        self._count_examples()
        if self._sampler is not None:
            self.ledger.close(self._sampler.size)
        self.log_ledger()

    def log_ledger(self) -> None:
        self.publisher.log({"gpq_epochs": self.ledger.epochs, "gpq_epochs_exact": self.ledger.exact})

    def _stop(self, kind: int) -> None:
        self._stop_waits = 0 if self.agreement.confirm(not self._in_midst()) else kind
        if self._stop_waits:
            return
        self._count_examples()
        self.freedoms.agree()  # what was seen, and not told yet
        saved = self.save("stop") if self.environment.rank == 0 else False
        if not self.agreement.confirm(saved):
            if self.store is None:
                self.notice("asked to stop, but there is no checkpoint directory: going on")
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return
        self.publish()
        self.leave(kind)

    def leave(self, kind: int) -> NoReturn:
        """Everything is saved: say so on every node, and end."""
        again()
        self._mark(wire.STOPPED)
        self.pulse.phase("ended")
        self._terminator.disarm()  # who is told to hurry now has nothing left to save
        leave(EXIT_CODES[kind], self._told_at_exit)

    def finish(self) -> None:
        """The last epoch is over: nothing is left to interrupt."""
        again()
        if self.check is not None:
            self.check.finish(self)
        self._terminator.disarm()
        self.publish()
        saved = self.save("end") if self.environment.rank == 0 and self.store is not None else True
        self.agreement.confirm(saved)
        self.agreement.drain()
        self.done()

    def done(self) -> None:
        """Training is over: say so on every node, so that an exit with 0 is the end of the job."""
        part_company()
        self._terminator.disarm()
        self.pulse.phase("ended")
        self._finished = True
        self._mark(wire.FINISHED)

    def _reopen(self) -> None:
        """The script trains on after the end that it told of."""
        if self._finished and self.environment.run_dir and self.environment.local_rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.environment.run_dir, wire.FINISHED))
        self._finished = False

    def _mark(self, name: str) -> None:
        """One of wire's statements to the node agent, once a node. Without it the attempt counts by its exit code alone."""
        run_dir = self.environment.run_dir
        if not run_dir or self.environment.local_rank:
            return
        try:
            wire.write_json(os.path.join(run_dir, name), {"step": self.meter.steps, "time": time.time()})
        except OSError as error:
            self.notice("cannot write {}: {}".format(name, error))

    def _told_at_exit(self, message: str) -> None:
        sys.stderr.write("gpq: {}\n".format(message))
        self.report.notice(message)

    def abandon(self) -> None:
        """The script has left its epochs early. Nobody looks for a stop any more, so SIGTERM had better end it."""
        self._terminator.disarm()

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep these numbers for the next report; after the last one they go up at once."""
        meter = self.meter
        if self.check is not None:
            self.check.log(values)
        self.publisher.log(values, meter.base_steps if self._sampler is not None else float(meter.steps))
        if self._finished:
            self.publisher.metrics(self.meter.steps)

    def failed(self, error: BaseException) -> None:
        """This error is about to end the script."""
        if self.environment.run_dir:
            note_error(self.environment.run_dir, self.environment.rank, error)
        # The traceback may or may not keep the loop alive, and with it the micro-batch in hand.
        micro = self._abandoned or (None if self.evaluation_failed else self.micro)
        if micro is None:
            return
        if is_out_of_memory(error):
            self._out_of_memory(micro)
            return
        counts = micro.step.counts
        event = Failure(micro.place, len(counts), counts[micro.place], micro.step.total, error)
        for habit in self._observers.failed(event):
            self.freedoms.record_locally(habit)

    def _out_of_memory(self, failed: Issued) -> None:
        """An allocation failed: let the next attempt ask for less."""
        if self.memory is None or self._limits is None:
            return
        shortage = lessen(self.memory, failed.step, self._limits, may_cut=ACCUMULATE not in self.freedoms.lost)
        self.notice(shortage.line)
        if shortage.is_ours and self.environment.run_dir:
            with contextlib.suppress(OSError):  # then it counts as the job's
                wire.write_json(os.path.join(self.environment.run_dir, wire.EXCUSED), {"note": shortage.line})

    # -- around a micro-batch ------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        self._times.start()

    def enter(self, micro: Issued, *, first: bool) -> bool:
        """The script is about to be given this micro-batch, the `first` of a loop. False: not it, but the step anew, in
        another shape."""
        if self._gate is None or self._gradients is None or self._probe is None or self._limits is None:
            raise GpqTrainError("the loader was used before job.prepare()", "call job.prepare(model, optimizer) first")
        step, replicas = micro.step, self.environment.replicas
        if not self._checked and self._is_cut_wrongly(micro):
            return False
        self.micro, self._abandoned, self._first = micro, None, first
        self.evaluation_failed = self._weighed_here = False
        self._times.begin(step.configuration, first=micro.place == 0, usable=step.full)
        if micro.place == 0:
            if not self._declared:
                self.declare()
            self._begin_step(micro)
        if self._scaler is not None and step.sampled:
            # The tensor itself: get_scale() would wait for the GPU.
            self._probe.grad_scale = internals.scale_of(self._scaler)
        weight = step.weight(micro.place, replicas)
        self._gradients.enter(micro.place, len(step.counts), weight, even=step.is_even(replicas))
        self._gate.enter(micro)
        if self.check is not None:
            self.check.entered(micro)
        trial = self._trial is not None
        self._observers.batch_begins(BatchBegin(self._steps_here, micro.place, trial))
        return True

    def take_back(self, micro: Issued) -> bool:
        """The script has dropped the first micro-batch of a loop: after a look at it? Then nothing of it counts. What it has
        changed by hand, it has changed at the head of the epoch."""
        gate, gradients = self._gate, self._gradients
        assert gate is not None
        assert gradients is not None
        if gate.touched or gradients.passes or self._weighed_here:
            return False
        gate.take_back()
        gradients.leave(drop=True)
        self._times.spoil()
        if self.check is not None:
            self.check.taken_back()
        # Should an error end the script: it may have dropped the loop.
        self._abandoned = None if self.evaluation_failed else micro
        self.micro = self._trial = None
        self._looked_at = True
        return True

    def looks_over(self) -> bool:
        """A loop begins: has the script trained on what was taken back?"""
        used, self._look_used, self._looked_at = self._look_used, False, False
        return used

    def _is_cut_wrongly(self, micro: Issued) -> bool:
        """Look at the layers of the models, once they are as they are trained. Collective."""
        self._checked = True
        self._observers.training_begins()
        if not self.freedoms.agree():
            return False
        self._reshape()
        return len(micro.step.counts) > 1

    def _begin_step(self, micro: Issued) -> None:
        assert self._probe is not None
        assert self._limits is not None
        assert self._noise is not None
        assert self._gradients is not None
        step = micro.step
        self._weights_changed = True
        self.ledger.begin_step()
        self._weighed, self._unit = False, 1.0
        self._probe.arm(
            sampled=step.sampled and step.inverse > 0.0,
            micro_batches=len(step.counts),
            examples=step.total,
            inverse=step.inverse or 1.0,
        )
        self._trial = None
        if len(step.counts) > 1 and self._trial_epoch != step.epoch:
            self._trial = Trial(self._gradients.parameters(), self.parts.of_the_script(), self._models)
        self._gain = 1.0 if self._limits.fixed else max(self._noise.gain(step.total), 1.0)
        if step.configuration.seq > 0 and step.configuration != self._announced:
            self._announced = step.configuration
            content = {
                "atomic_batch": step.configuration.atomic_batch,
                "accum_steps": step.configuration.accum_steps,
                "lr_factor": round(self._rate_factor(self._optimizers[0]), 6),
                "seq": step.configuration.seq,
            }
            self.report.send("retuned", content)

    def leave_micro(self, micro: Issued, *, abandoned: bool) -> bool:
        """The script is done with it. True: the step is to be made anew, in one piece."""
        assert self._gate is not None
        assert self._gradients is not None
        assert self._probe is not None
        if self._first:
            self._open()
        if abandoned and not self.evaluation_failed:
            self._abandoned = micro
        passes = self._gradients.passes
        if micro.last and not abandoned and self.environment.replicas > 1 and not self._gradients.passes:
            self._meet_others()
        if not self._gate.acted or self.evaluating:
            self._times.spoil()
        if self._weighed and not self._weighed_here and not abandoned:
            raise GpqTrainError("job.weigh() was called in some micro-batches of a step, not in all", "call it in each")
        self._times.end(synchronised=micro.last, tail=self._tail)
        acted = self._end_batch(micro, abandoned)
        self.micro = None
        if not abandoned and not micro.last and self._trial is not None and self._is_refused(self._trial, micro):
            self._gradients.leave(drop=True)
            self._trial.undo()
            self._trial = None
            if self.check is not None:
                self.check.taken_back()
            return True
        self._trial = None
        self._gradients.leave(drop=abandoned)
        if self.check is not None:
            self.check.left(micro)
        # A batch that the loop has left out trains nothing.
        if passes or acted or self.freedoms.steps_by_hand:
            self.ledger.hand_out(micro.indices)
        if micro.last:
            self._end_step(acted or self.freedoms.steps_by_hand)
        return False

    def _end_batch(self, micro: Issued, abandoned: bool) -> bool:
        """Tell observers what the body has done. Returns whether an optimizer has stepped."""
        assert self._gate is not None
        assert self._gradients is not None
        optimizers, gradients = self._gate.leave(), self._gradients
        facts = GradientFacts(gradients.changed_between, gradients.carried, gradients.replaced)
        event = BatchEnd(
            step=self._steps_here,
            epoch=micro.step.epoch,
            place=micro.place,
            last=micro.last,
            left_early=abandoned,
            optimizers=optimizers,
            gradients=facts,
        )
        self._observers.batch_ends(event)
        return optimizers.stepped

    def _meet_others(self) -> None:
        """No backward pass in a step: the other replicas have had none either, however long they take, or wait in theirs for
        this one for ever."""
        work = dist.all_reduce(torch.zeros(1), group=self.group, async_op=True)
        begin = alone = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if not self.pulse.others_wait(self.meter.steps):
                alone = now
            if now > min(alone + MEET_SECONDS, begin + MEET_AT_MOST):
                raise GpqTrainError(
                    "this replica left backward() out of a step that other replicas wait in",
                    "run backward() for every batch, on every replica: multiply a loss that is not wanted by 0",
                )
            time.sleep(0.01)

    def _end_step(self, acted: bool) -> None:
        assert self._probe is not None
        self._probe.finish()
        self.ledger.step_done()
        self._steps_here += 1
        self._pending = 0 if acted else self._pending + 1
        seconds = time.perf_counter() - self._step_begin
        self._step_seconds += (seconds - self._step_seconds) * (0.1 if self._step_seconds else 1.0)

    def _is_refused(self, trial: Trial, micro: Issued) -> bool:
        """Has the first micro-batch of a step in pieces shown that it must not be cut? Collective."""
        self._trial_epoch = micro.step.epoch
        event = FirstPartEnd(trial.moved(), trial.changed_buffer(), trial.changed_parts())
        self._observers.first_part_ends(event)
        if not self.freedoms.agree():
            return False
        needed = {ACCUMULATE} if micro.step.configuration.accum_steps > 0 else {SPLIT}
        if needed.isdisjoint(self.freedoms.lost):
            self._reshape_later = True  # this step may go on as it has begun
            return False
        self._reshape()
        return True

    def weigh(self, amount: float) -> None:
        """The micro-batch in hand weighs so much instead of its examples. Collective in the last of a step."""
        if self.micro is None or self._gradients is None:
            return
        micro, replicas = self.micro, self.environment.replicas
        if self._gradients.passes:
            raise GpqTrainError("job.weigh() was called after backward()", "call it before")
        if micro.place > 0 and not self._weighed:
            raise GpqTrainError("job.weigh() was called in some micro-batches of a step, not in all", "call it in each")
        amount = float(amount) if micro.step.counts[micro.place] else 0.0
        if not 0.0 <= amount < float("inf"):
            raise GpqTrainError("job.weigh() needs a number of at least 0, not {}".format(amount))
        if micro.place == 0:
            self._weighed, self._unit, self._amount = True, amount or 1.0, 0.0
        self._amount += amount
        self._weighed_here = True
        if not micro.last:
            self._gradients.weigh(amount / self._unit)
            return
        whole = self.agreement.summed([self._amount])[0]
        if whole <= 0.0:
            raise GpqTrainError("job.weigh() was given 0 in every micro-batch of a step", "leave out such batches")
        self._gradients.scale(replicas * self._unit / whole)
        self._gradients.weigh(replicas * amount / whole)

    def spoil(self) -> None:
        """The step in hand holds something that is not training."""
        self._times.spoil()

    # -- called by the gate --------------------------------------------------------------------------------------------

    def report_habit(self, habit: Habit) -> None:
        """The loop has it, or seems to have it: that is what gpq check is to try. Nothing that an evaluation does counts."""
        if self.evaluating:
            return
        if self.check is not None and is_suspected(habit.code):
            self.check.suspect(described(habit))
        else:
            self.freedoms.record(habit)

    def step_called(self, event: StepCall) -> None:
        self._observers.step_called(event)

    def settings_changed(self, event: SettingsChange) -> None:
        self._observers.settings_changed(event)

    def scheduler_called(self, event: SchedulerCall) -> None:
        self._observers.scheduler_called(event)

    def outside(self) -> None:
        """An optimizer steps outside the loop over the loader."""
        after_look = self._looked_at  # with a batch that was taken by next() of an iterator that is gone
        if after_look:
            self._looked_at, self._look_used = False, True
            self._open()
        self._observers.step_outside(StepOutside(self.in_epochs, after_look))

    def pass_over_data(self, *, by_next: bool) -> Optional[int]:
        """The script begins a loop over the loader, or asks for batches `by_next`. Returns the epoch of job.epochs(), None if
        that does not count them. Raises GpqTrainError in the body of another such loop."""
        if self.micro is not None and not self.evaluating:
            raise GpqTrainError(
                "a loop over the loader begins while a batch of another one is in hand",
                "one loop at a time; for a look at the data next(iter(loader)), whose iterator is not kept",
            )
        self._opening = LoopBegin(by_next, self.epoch if self.in_epochs else None)
        self._observers.loop_begins(self._opening)
        return self._opening.epoch

    def _open(self) -> None:
        """The loop that has begun trains."""
        self._first = False
        opening, self._opening = self._opening, None
        if opening is not None:
            self._observers.loop_trains(opening)

    def begin_pass(self, roots: Sequence[Any], given: Sequence[Any]) -> None:
        if self._gradients is None or self._gate is None or self.evaluating:
            return
        examples = self.micro.step.counts[self.micro.place] if self.micro is not None and not self._weighed else 0
        event = BackwardBegin(roots, given, self._steps_here, examples, self._gate.acted)
        self._asks_reached = self._observers.backward_begins(event)
        self._gradients.begin_pass()
        if self._asks_reached:
            self._gradients.watch()

    def end_pass(self) -> None:
        if self._gradients is not None and self._probe is not None and not self.evaluating:
            self._end_pass(self._gradients, self._probe)

    def _end_pass(self, gradients: Gradients, probe: GradientProbe) -> None:
        # What another model does in the body, a measurement say, is no part of the training.
        if self._asks_reached and gradients.is_reached():
            self._observers.backward_reaches()
        gradients.end_pass()
        if self.environment.replicas == 1 or not gradients.last:
            self._tail = ()  # nothing to wait for
        elif probe.last_ready is None:
            self._tail = None
        else:
            self._tail = (probe.last_ready, self._times.clock.mark())

    def mean_loss(self, loss: Any) -> Any:
        """The mean over replicas of what a closure returned, by their examples."""
        if self.environment.replicas == 1 or self._gradients is None or loss is None:
            return loss
        value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
        mean = self.agreement.summed([value * self._gradients.weight])[0] / self.environment.replicas
        return torch.full_like(loss, mean) if isinstance(loss, torch.Tensor) else mean

    def adjustment(self, optimizer: Any) -> Adjustment:
        """What the step in hand makes of this optimizer's learning rate and betas."""
        assert self._limits is not None
        assert self.micro is not None
        base, total = self._limits.base_batch, self.micro.step.total
        if total == base and self._gain == 1.0 and self._rules[id(optimizer)].is_neutral:
            return UNCHANGED
        betas = 1.0
        if self._scale_betas and not self._limits.fixed:
            betas = betas_power(optimizer, total_batch=total, base_batch=base)
        return Adjustment(self._rate_factor(optimizer), betas)

    def _rate_factor(self, optimizer: Any) -> float:
        assert self._limits is not None
        assert self.micro is not None
        total = self._limits.base_batch
        if not self._limits.fixed:  # the batches of a batch sampler differ, and the rate is right for all of them
            total = max(self.micro.step.total, total)
        rule = self._rules[id(optimizer)]
        return rule.factor(total_batch=total, gain=self._gain, base_steps=self.meter.base_steps)

    def gain(self) -> float:
        """Of the step in hand."""
        return self._gain

    def stepped(self, applied: bool) -> None:
        """The step in hand was made."""
        if not applied:
            self._weights_changed = False  # an average of weights that stay as they are does not change either
            self.meter.skipped(self._gain)
            return
        self.meter.stepped(self._gain)
        self.say_ready()

    def say_ready(self) -> None:
        """The first step of this attempt is done."""
        if not self._ready:
            self._ready = True
            content = {"seconds": round(seconds_since_launch(), 3), "restore_seconds": round(self.restore_seconds, 3)}
            self.report.send("ready", content)
