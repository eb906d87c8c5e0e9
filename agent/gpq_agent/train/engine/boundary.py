"""Runs between two steps: obeys orders, writes checkpoints, stops, compares habits."""

import time
from typing import Optional

from gpq_agent import wire
from gpq_agent.train.attempt.checkpointer import Checkpointer
from gpq_agent.train.attempt.runtime import Ending, Recorded, Runtime
from gpq_agent.train.attempt.shape import BatchShape
from gpq_agent.train.attempt.statistics import Statistics, StepRecord
from gpq_agent.train.data.sample_audit import Ledger
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.runtime.agreement import END, EPOCH, STEP, Proposal
from gpq_agent.train.runtime.orders import ControlReader
from gpq_agent.train.runtime.shutdown import raise_if_stopping
from gpq_agent.train.runtime.termination import STOP_ORDERED, STOP_SIGNAL

AGREE_SECONDS = 0.2  # agree on orders this often, at most once per step
MAX_PAUSE = 50  # steps between agreements
RETRY_SECONDS = 5.0  # until gpq retries a stop whose checkpoint could not be written
WATCHED_STEPS = 3  # steps of an attempt after which replicas compare what they noticed


class StepBoundary:
    """Acts the same on every replica, because it uses only what all have agreed on. `stopping`: the
    kind of the requested stop, or 0."""

    def __init__(
        self,
        runtime: Runtime,
        shape: BatchShape,
        steps: StepRecord,
        checkpointer: Checkpointer,
        statistics: Statistics,
    ) -> None:
        self.stopping = 0
        self.ledger = Ledger()
        self.ending = Ending(runtime)
        self.watch: Optional[LoopWatch] = None  # from job.prepare() on
        self._runtime, self._shape = runtime, shape
        self._steps, self._checkpointer, self._statistics = steps, checkpointer, statistics
        environment = runtime.environment
        self._control: Optional[ControlReader] = None
        if environment.run_dir and runtime.is_lead:
            self._control = ControlReader(environment.run_dir, environment.attempt)
        self._waiting = (
            0  # kind of a stop that waits until rank 0 is between two steps of the loop's own
        )
        self._is_save_due = False
        self._retry_at = 0.0
        runtime.agreement.propose = self.propose

    def run(self) -> None:
        """Obey what was agreed on. Does not return from a stop, unless nothing could be saved."""
        raise_if_stopping()
        runtime, checkpointer = self._runtime, self._checkpointer
        if runtime.evaluating:
            return
        with_loader = self._shape.data is not None
        runtime.agreement.place += 1
        runtime.agreement.call = STEP if with_loader else "job.should_stop()"
        if runtime.finished:
            runtime.reopen()
        self._compare_notes()
        if self._shape.is_late:
            self._shape.reshape()
        if runtime.environment.checkpoint_dir:
            self.ending.arm()
        runtime.pulse.beat(runtime.meter.steps, "arrived")
        agreed = self._agree()
        if agreed is not None:
            self._obey(agreed)
            self._is_save_due = checkpointer.is_due()
        elif self._waiting:
            self._stop(self._waiting)
        if self._is_save_due and not self._steps.in_midst:
            self._is_save_due = False
            checkpointer.save("periodic")
        runtime.pulse.phase("computing")
        self._steps.begin()

    def close_epoch(self) -> None:
        """The running epoch is over on every replica. Collective."""
        raise_if_stopping()
        self._runtime.agreement.call = EPOCH
        if self.watch is not None:
            self.watch.epoch_ends()
        self._shape.agree()
        self._audit()
        ledger = self.ledger
        if self._shape.data is not None:
            ledger.close(self._shape.data.sampler.size)
        counts = {"gpq_epochs": ledger.epochs, "gpq_epochs_exact": ledger.exact}
        self._statistics.publisher.log(counts)

    def finish(self) -> None:
        """The last epoch is over, so nothing is left to interrupt. Collective."""
        raise_if_stopping()
        runtime = self._runtime
        runtime.agreement.call = END
        if runtime.recorder is not None:
            runtime.recorder.finish(self._recorded())
        self.ending.disarm()
        self._statistics.publish()
        has_store = self._checkpointer.store is not None
        runtime.agreement.broadcast_flag(self._checkpointer.save("end") or not has_store)
        runtime.agreement.drain()
        self.ending.done()

    def propose(self) -> Proposal:
        """What this replica knows. Only rank 0 reads orders."""
        order = self._control.order if self._control is not None else None
        order = order or wire.Control(attempt=0, seq=0)
        stop = STOP_ORDERED if order.stop else 0
        stop = STOP_SIGNAL if self.ending.is_requested else stop
        if time.monotonic() < self._retry_at:
            stop = 0
        report, seconds = self._runtime.report, self._steps.seconds
        pause = int(AGREE_SECONDS / seconds) if seconds else 1
        return Proposal(
            seq=order.seq,
            stop=stop,
            atomic_batch=max(order.atomic_batch, 0),
            accum_steps=max(order.accum_steps, 0),
            report=int(report.due()) * (2 if report.window_due() else 1),
            sample_every=self._statistics.sample_every(seconds),
            pause=min(max(pause, 1), MAX_PAUSE),
        )

    # -- inside ------------------------------------------------------------------------------------

    def _agree(self) -> Optional[Proposal]:
        """Agree on the orders of this step, or None. `gpq check` has its own."""
        recorder = self._runtime.recorder
        if recorder is None:
            return self._runtime.agreement.step()
        if not self._steps.in_midst:
            recorder.boundary(self._recorded())
        return recorder.agreed()

    def _recorded(self) -> Recorded:
        data = self._shape.data
        sampler = data.sampler if data is not None else None
        parts = self._checkpointer.parts.named()
        return Recorded(parts, self._runtime.pulse, sampler)

    def _obey(self, agreed: Proposal) -> None:
        self._shape.obey(agreed)
        self.stopping = agreed.stop
        if agreed.report:
            self._shape.agree()
            self._statistics.publish()
        if agreed.report > 1:
            self._statistics.publisher.ranks(self._statistics.times, self._runtime.meter.steps)
        if agreed.stop and self._checkpointer.is_ready:
            self._stop(agreed.stop)

    def _compare_notes(self) -> None:
        """Did all replicas notice the same? Asked after the first steps of an attempt. Alone,
        whenever something was noticed."""
        if self._shape.data is None or not self._checkpointer.is_ready:
            return
        count, several = self._steps.count, self._runtime.replicas > 1
        if self._steps.is_watched and self.watch is not None:
            self.watch.boundary()
        if count > WATCHED_STEPS and several:
            return
        if several or self._shape.freedoms.waiting:
            self._shape.agree()

    def _audit(self) -> None:
        """Compare what all replicas did since the last time with the order of the data.
        Collective."""
        if self._shape.data is not None:
            sampler = self._shape.data.sampler
            totals = self._runtime.agreement.all_reduce_sum_int(self.ledger.counted())
            self.ledger.compare(totals, sampler.order(), sampler.cursor.consumed)

    def _stop(self, kind: int) -> None:
        agreement = self._runtime.agreement
        self._waiting = 0 if agreement.broadcast_flag(not self._steps.in_midst) else kind
        if self._waiting:
            return
        self._audit()
        self._shape.freedoms.agree()  # noticed, but not reported yet
        if not agreement.broadcast_flag(self._checkpointer.save("stop")):
            if self._checkpointer.store is None:
                text = "asked to stop, but there is no checkpoint directory, so training continues"
                self._runtime.notice(text)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return
        self._statistics.publish()
        self.ending.leave(kind)
