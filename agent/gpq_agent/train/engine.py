"""What happens between two optimizer steps, and around each micro-batch: orders, checkpoints, stops, measurements.

Acts alike on every replica, because it acts only on what all have agreed on. Knows nothing of the script's loop.
"""

import os
import sys
import time
from typing import Any, Mapping, NoReturn, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpq_agent import wire

from . import check
from .agreement import Agreement, Proposal
from .batches import Limits, ordered
from .checkpoint import CheckpointStore, MemoryRecord
from .control import ControlReader
from .environment import Environment, seconds_since_launch
from .errors import GpqTrainError
from .ledger import Ledger
from .noise_scale import NoiseScale
from .probe import GradientProbe
from .progress import ProgressMeter
from .publish import Publisher, declaration
from .pulse import Pulse
from .report import Reporter
from .restore import Parts
from .sampler import SAMPLE_EVERY, GlobalSampler, Issued
from .scaling import Rule
from .stepping import StepGate
from .stopping import EXIT_CODES, STOP_ORDERED, STOP_SIGNAL, Terminator, leave_process
from .timing import StepClock, StepTimes
from .weighing import GradientWeight

AGREE_SECONDS = 0.2  # agree on orders about so often, at most once a step
MAX_PAUSE = 50  # steps between agreements
SAMPLE_COST = 0.005  # share of the training time that gradient statistics may take
SAMPLE_RANGE = (5, 50)  # steps
RETRY_SECONDS = 5.0  # until a stop whose checkpoint could not be written is tried again


class Engine:
    """One per job; a loader and a training set-up are attached when the script has made them."""

    def __init__(self, environment: Environment, device: torch.device, environ: Mapping[str, str]) -> None:
        self.environment = environment
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
        self.evaluating = 0
        self.evaluation_failed = False  # in this micro-batch: it was not training that ran out of memory
        self.stopping = 0
        folder = environment.checkpoint_dir
        self.store = CheckpointStore(folder) if folder else None
        self.memory = MemoryRecord(folder) if folder else None
        self.micro: Optional[Issued] = None
        self._abandoned: Optional[Issued] = None  # the script left the loop in this one
        self.publisher = Publisher(self.report, self.agreement, environment.nodes, environment.replicas)
        self._control = ControlReader(run_dir, environment.attempt) if run_dir and lead else None
        self._terminator = Terminator()
        self._device = device
        self._times = StepTimes(StepClock(device))
        self._limits: Optional[Limits] = None
        self._sampler: Optional[GlobalSampler] = None
        self._noise: Optional[NoiseScale] = None
        self._gate: Optional[StepGate] = None
        self._probe: Optional[GradientProbe] = None
        self._weight: Optional[GradientWeight] = None  # in the probe's stead
        self._rule: Optional[Rule] = None
        self._scaler: Any = None
        self._declared = False
        self._ready = False
        self._finished = False
        self._gain = 1.0
        self._tail: Optional[Tuple[Any, ...]] = None
        self._applied = 0  # seq of the order in force
        self._announced = 0  # seq of the order last reported as in effect
        self._retry_at = 0.0
        self._probe_notice = ""
        self._step_begin = 0.0
        self._step_seconds = 0.0  # smoothed
        self.restore_seconds = 0.0

    # -- set-up --------------------------------------------------------------------------------------------------------

    def attach_data(self, limits: Limits, sampler: GlobalSampler, noise: NoiseScale) -> None:
        self._limits, self._sampler, self._noise = limits, sampler, noise

    def attach_training(self, model: torch.nn.Module, optimizer: Any, rule: Rule, scaler: Any) -> StepGate:
        """Hook into the model's gradients and the optimizer's steps."""
        assert self._noise is not None
        self._rule, self._scaler = rule, scaler
        self._model = model
        self._probe = GradientProbe(model, optimizer, self._noise, self.environment.replicas)
        self._probe.arrived = lambda: self.pulse.phase("arrived")
        self._gate = StepGate(
            optimizer, backward_done=self._backward_done, factor=self._lr_factor, stepped=self._stepped
        )
        return self._gate

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
        if self._limits is not None and self._sampler is not None and self._rule is not None:
            content = declaration(self._limits, self._sampler.size, self.meter.epochs, self._rule.name, self._model)
        self.report.send("declared", content._asdict())

    # -- between steps -------------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Obey what was agreed on. Does not return when that is a stop, unless nothing could be saved."""
        if self.evaluating:
            return
        if self.environment.checkpoint_dir:
            self._terminator.arm()
        self.pulse.beat(self.meter.steps, "arrived")
        if self.check is not None:
            self.check.boundary(self)
        agreed = self.agreement.step() if self.check is None else self.check.agreed()
        if agreed is not None:
            self._obey(agreed)
        store = self.store
        if store is not None and self.environment.rank == 0 and self._gate is not None and store.due():
            self.save("periodic")
        self.pulse.phase("computing")
        self._step_begin = time.perf_counter()

    def _obey(self, agreed: Proposal) -> None:
        if self._sampler is not None and self._limits is not None:
            if agreed.seq > self._applied:
                configuration = ordered(self._limits, agreed.seq, agreed.atomic_batch, agreed.accum_steps)
                self._sampler.configure(configuration)
            self._sampler.sample_every = agreed.sample_every
        self._applied = max(self._applied, agreed.seq)
        self.stopping = agreed.stop
        if agreed.report:
            self.publish()
        if agreed.report > 1:
            self.publisher.ranks(self._times, self.meter.steps)
        if agreed.stop and self._gate is not None:
            self._stop(agreed.stop)

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
        if self._limits is None or self._limits.fixed:
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
            return wire.Progress(0, 0, 0, self.meter.steps, 0.0, 0.0)
        return self.meter.at(self._sampler.cursor, self._sampler.size)

    # -- saving and stopping -------------------------------------------------------------------------------------------

    def save(self, why: str) -> bool:
        """Write a checkpoint (rank 0 only). False, and a notice, when the disk does not take it."""
        if self.store is None:
            return False
        self.pulse.phase("saving")
        try:
            saved = self.store.save(self.parts.state(), self.meter.steps, self.environment.attempt)
        except (OSError, RuntimeError) as error:
            self.store.postpone()
            self.notice("cannot write a checkpoint: {}".format(str(error).splitlines()[0]))
            return False
        content = {"step": self.meter.steps, "seconds": round(saved.seconds, 4), "bytes": saved.size, "why": why}
        self.report.send("checkpoint", content)
        return True

    def _count_examples(self) -> None:
        """Hold what all replicas did since the last time against the order of the data. Collective."""
        if self._sampler is not None:
            totals = self.agreement.total(self.ledger.counted())
            self.ledger.compare(totals, self._sampler.order(), self._sampler.cursor.consumed)

    def close_epoch(self) -> None:
        """The running epoch is over on every replica. Collective."""
        self._count_examples()
        if self._sampler is not None:
            self.ledger.close(self._sampler.size)
        self.log_ledger()

    def log_ledger(self) -> None:
        self.publisher.log({"gpq_epochs": self.ledger.epochs, "gpq_epochs_exact": self.ledger.exact})

    def _stop(self, kind: int) -> None:
        self._count_examples()
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
        run_dir = self.environment.run_dir
        if run_dir and self.environment.local_rank == 0:
            wire.write_json(os.path.join(run_dir, wire.STOPPED), {"step": self.meter.steps, "time": time.time()})
        self.pulse.phase("ended")
        leave_process(EXIT_CODES[kind])

    def finish(self) -> None:
        """The last epoch is over: nothing is left to interrupt."""
        if self.check is not None:
            self.check.finish(self)
        self._terminator.disarm()
        self.publish()
        saved = self.save("end") if self.environment.rank == 0 and self.store is not None else True
        self.agreement.confirm(saved)
        self.pulse.phase("ended")
        self._finished = True

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

    def out_of_memory(self) -> None:
        """The script is about to end because an allocation failed: let the next attempt ask for less."""
        # The traceback may or may not keep the loop alive, and with it the micro-batch in hand.
        failed = self._abandoned or (None if self.evaluation_failed else self.micro)
        if self.memory is None or failed is None:
            return
        tried = max(failed.step.counts)
        bound = self.memory.failed(tried)
        self.notice("out of memory with {} examples at once; the next attempt uses at most {}".format(tried, bound))

    # -- around a micro-batch ------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        self._times.start()

    def enter(self, micro: Issued) -> None:
        if self._gate is None or self._probe is None or self._limits is None:
            raise GpqTrainError("the loader was used before job.prepare()", "call job.prepare(model, optimizer) first")
        step, replicas = micro.step, self.environment.replicas
        self.micro, self._abandoned = micro, None
        self.evaluation_failed = False
        self._times.begin(step.configuration, first=micro.place == 0, usable=step.full)
        if micro.place == 0:
            if not self._declared:
                self.declare()
            self._begin_step(micro)
        self._synchronise(micro.last)
        self._weigh(step.weight(micro.place, replicas))
        if self._scaler is not None and step.sampled:
            # The tensor itself: get_scale() would wait for the GPU.
            scale = getattr(self._scaler, "_scale", None)
            self._probe.grad_scale = self._scaler.get_scale() if scale is None else scale
        self._gate.enter(micro)
        if self.check is not None:
            self.check.entered(micro)

    def _synchronise(self, wanted: bool) -> None:
        """What DistributedDataParallel.no_sync() sets, without a block around the script's own code. Setting an attribute
        of a module is slow, so only where it changes."""
        model = self._model
        if isinstance(model, DistributedDataParallel) and model.require_backward_grad_sync != wanted:
            model.require_backward_grad_sync = wanted

    def _weigh(self, weight: float) -> None:
        """The factor on the gradients of the coming backward passes. The probe applies it, as long as it can."""
        assert self._probe is not None
        if self._weight is not None:
            self._weight.value, weight = weight, 1.0
        self._probe.weight = weight

    def _begin_step(self, micro: Issued) -> None:
        assert self._probe is not None
        assert self._limits is not None
        assert self._noise is not None
        step = micro.step
        self.ledger.begin_step()
        self._finished = False
        if self._probe.notice and self._weight is None:
            self._weigh(1.0)
            self._weight = GradientWeight(self._model)
        micro_batches = len(step.counts)
        batch = step.total / (micro_batches * self.environment.replicas)  # the mean: a split batch may have odd halves
        self._probe.arm(sampled=step.sampled, micro_batches=micro_batches, batch=batch)
        self._gain = 1.0 if self._limits.fixed else max(self._noise.gain(step.total), 1.0)
        if step.configuration.seq > self._announced:
            self._announced = step.configuration.seq
            content = {
                "atomic_batch": step.configuration.atomic_batch,
                "accum_steps": step.configuration.accum_steps,
                "lr_factor": round(self._lr_factor(), 6),
                "seq": step.configuration.seq,
            }
            self.report.send("retuned", content)

    def leave_micro(self, micro: Issued, *, abandoned: bool) -> None:
        assert self._gate is not None
        if self.check is not None:
            self.check.left(micro)
        if abandoned and not self.evaluation_failed:
            self._abandoned = micro
        if not abandoned and not micro.last:
            self._gate.finish_backward()  # a script need not call anything of ours where a step only accumulates
        if not self._gate.acted or self.evaluating:
            self._times.spoil()
        self._times.end(synchronised=micro.last, tail=self._tail)
        self.ledger.hand_out(micro.indices)
        if micro.last:
            self.ledger.step_done()
        self._gate.leave(abandoned=abandoned)
        if micro.last:
            self._weigh(1.0)  # what the script does between two steps is its own
        self._synchronise(True)  # outside the loop the model is as the script made it
        self.micro = None
        if micro.last:
            seconds = time.perf_counter() - self._step_begin
            self._step_seconds += (seconds - self._step_seconds) * (0.1 if self._step_seconds else 1.0)

    def spoil(self) -> None:
        """The step in hand holds something that is not training."""
        self._times.spoil()

    # -- called by the gate --------------------------------------------------------------------------------------------

    def _backward_done(self, last: bool) -> None:
        assert self._probe is not None
        self._probe.after_backward(last=last)
        if not last or self.environment.replicas == 1:
            self._tail = ()  # nothing to wait for
        elif self._probe.last_ready is None:
            self._tail = None
        else:
            self._tail = (self._probe.last_ready, self._times.clock.mark())

    def _lr_factor(self) -> float:
        assert self._rule is not None
        assert self._limits is not None
        assert self.micro is not None
        total = max(self.micro.step.total, self._limits.base_batch)
        return self._rule.factor(total_batch=total, gain=self._gain, base_steps=self.meter.base_steps)

    def _stepped(self, applied: bool) -> None:
        if not applied:
            self.meter.skipped()
            return
        self.meter.stepped(self._gain)
        self.say_ready()

    def say_ready(self) -> None:
        """The first step of this attempt is done."""
        if not self._ready:
            self._ready = True
            content = {"seconds": round(seconds_since_launch(), 3), "restore_seconds": round(self.restore_seconds, 3)}
            self.report.send("ready", content)
