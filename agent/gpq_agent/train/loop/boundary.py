"""Runs between two steps: obeys orders, writes checkpoints, stops, compares habits."""

import time
from operator import mul
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import torch

from gpq_agent import wire
from gpq_agent.train.habits.watch import LoopWatch
from gpq_agent.train.loop.runtime import Ending
from gpq_agent.train.process.agreement import END, EPOCH, STEP, Proposal
from gpq_agent.train.process.channels import ControlReader
from gpq_agent.train.process.shutdown import STOP_ORDERED, STOP_SIGNAL, departure, raise_if_stopping

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine

AGREE_SECONDS = 0.2  # agree on orders this often, at most once per step
MAX_PAUSE = 50  # steps between agreements
RETRY_SECONDS = 5.0  # until gpq retries a stop whose checkpoint could not be written
WATCHED_STEPS = 3  # steps of an attempt after which replicas compare what they noticed
OFTEN_STEPS = 100  # of an attempt, which are all watched
SELDOM_STEPS = 10  # later one of so many is
TOGETHER = 1024  # examples to add up at once
WRAP = 1 << 40  # sums stay below this, so that those of thousands of replicas fit in a double
MOST_PENDING = 64  # steps of the loader that a loop may make one of, before nobody waits for it


class StepBoundary:
    """Acts the same on every replica, because it uses only what all have agreed on. `stopping`: the
    kind of the requested stop, or 0."""

    def __init__(self, engine: "Engine") -> None:
        self.stopping = 0
        self.ledger = Ledger()
        self._engine = engine
        self._runtime = runtime = engine.runtime
        self.ending = Ending(runtime)
        self.watch: Optional[LoopWatch] = None  # from job.prepare() on
        self._shape, self._steps = engine.shape, engine.steps
        self._checkpointer, self._statistics = engine.checkpointer, engine.statistics
        self._side_effects = engine.side_effects
        environment = runtime.environment
        self._control: Optional[ControlReader] = None
        if environment.run_dir and runtime.is_lead:
            self._control = ControlReader(environment.run_dir, environment.attempt)
        # The kind of a stop that waits until rank 0 is between two steps of the loop's own.
        self._waiting = 0
        self._is_save_due = False
        self._retry_at = 0.0
        runtime.agreement.propose = self.propose

    def run(self) -> None:
        """Obey what was agreed on. Does not return from a stop, unless nothing could be saved.
        After the end, training begins again."""
        if self._side_effects.before_training:
            self._side_effects.begin()
        if departure:
            raise_if_stopping()
        runtime, checkpointer = self._runtime, self._checkpointer
        if runtime.evaluating:
            return
        with_loader = self._shape.data is not None
        runtime.agreement.place += 1
        runtime.agreement.call = STEP if with_loader else "job.should_stop()"
        if runtime.finished:
            runtime.reopen()
        if self._steps.is_watched or self._shape.freedoms.waiting:
            self._compare_notes()
        if self._shape.is_late:
            self._shape.reshape()
        if runtime.environment.checkpoint_dir and not self.ending.terminator.is_armed:
            self.ending.terminator.arm()
        runtime.pulse.beat(runtime.meter.steps, "arrived")
        recorder = runtime.recorder
        agreed = runtime.agreement.step() if recorder is None else recorder.boundary(self._engine)
        if agreed is not None:
            self._obey(agreed)
            self._is_save_due = checkpointer.is_due()
        elif self._waiting:
            self._stop(self._waiting)
        if self._is_save_due and not self._steps.in_midst:
            self._is_save_due = False
            checkpointer.save("periodic")
        runtime.pulse.phase("computing")
        self._steps.begin = time.perf_counter()

    def close_epoch(self) -> None:
        """The running epoch is over on every replica. Collective."""
        raise_if_stopping()
        self._runtime.agreement.call = EPOCH
        if self.watch is not None:
            self.watch.epoch_ends()
        self._shape.agree()

    def close_pass(self, size: int) -> None:
        """The running pass over the data is over, and should have used this many examples. Goes to
        the next pass. Collective."""
        data, ledger = self._shape.data, self.ledger
        assert data is not None
        self._runtime.agreement.call = EPOCH
        self._audit()
        ledger.close(size)
        counts = {"gpq_passes": ledger.passes, "gpq_passes_exact": ledger.exact}
        self._statistics.publisher.log(counts)
        data.sampler.next_pass()

    def finish(self) -> None:
        """The last epoch is over, so nothing is left to interrupt. Collective."""
        raise_if_stopping()
        runtime = self._runtime
        runtime.agreement.call = END
        if runtime.recorder is not None:
            runtime.recorder.finish(self._engine)
        self.ending.terminator.disarm()
        self._statistics.publish()
        has_store = self._checkpointer.store is not None
        runtime.agreement.broadcast_flag(self._checkpointer.save("end") or not has_store)
        runtime.agreement.drain()
        self.ending.done()

    def propose(self) -> Proposal:
        """What this replica knows. Only rank 0 reads orders."""
        order = self._control.read() if self._control is not None else None
        order = order or wire.Control(attempt=0, seq=0)
        stop = 0
        if time.monotonic() >= self._retry_at:
            stop = STOP_ORDERED if order.stop else 0
            stop = STOP_SIGNAL if self.ending.terminator.requested else stop
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
        if self._steps.is_watched and self.watch is not None:
            self.watch.boundary()
        if self._runtime.replicas == 1:
            if self._shape.freedoms.waiting:
                self._shape.agree()
        elif self._steps.count <= WATCHED_STEPS:
            self._shape.agree()

    def _audit(self) -> None:
        """Compare what all replicas did since the last time with the order of the data.
        Collective."""
        if self._shape.data is not None:
            sampler = self._shape.data.sampler
            totals = self._runtime.agreement.all_reduce_sum(self.ledger.counted())
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


class StepRecord:
    """The steps of this attempt: how many, how long, and whether the loop is in the middle of one.

    count: steps of the loader in this attempt. begin: when the current one began.
    seconds: the smoothed time of one step.
    is_watched: habits are looked for in the current step whatever happens in it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.begin = self.seconds = 0.0
        self.is_watched = True
        self._pending = 0  # steps of the loader since the last real step

    @property
    def in_midst(self) -> bool:
        """Is this replica in the middle of a step that the loop makes from several steps of the
        loader? A checkpoint would lose what it has accumulated. Replicas may differ if one skips a
        step, so rank 0 decides."""
        return 0 < self._pending < MOST_PENDING

    def end(self, *, real: bool) -> None:
        """`real`: an optimizer or the script itself changed weights in it."""
        self.count += 1
        self.is_watched = self.count <= OFTEN_STEPS or self.count % SELDOM_STEPS == 0
        self._pending = 0 if real else self._pending + 1
        seconds = time.perf_counter() - self.begin
        self.seconds += (seconds - self.seconds) * (0.1 if self.seconds else 1.0)


class Ledger:
    """Proves that every pass over the data visits every example exactly once, across resizes and
    batch changes.

    Each replica adds up the indices that went into a step. At the end of a pass, and before a stop,
    the sums of all replicas are compared with the order of the pass. If a crash loses part of a
    pass, that part is visited twice by some count, so such a pass is not exact. `passes` have
    ended, and `exact` of them visited each example exactly once.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.exact = 0
        # Examples at the start of the running pass that are proven to be visited once.
        self._proven_end = 0
        self._part_start = 0  # start of the part that is being counted
        self._pending_indices: List[int] = []  # not added up yet
        self._sums = [0, 0, 0]  # number, sum, sum of squares

    def record_step(self, indices: Sequence[int]) -> None:
        """A step trained on these examples."""
        self._pending_indices += indices
        if len(self._pending_indices) >= TOGETHER:
            self.counted()

    def counted(self) -> List[float]:
        """This replica's sums. The sums over all replicas go into `compare`."""
        indices, self._pending_indices = self._pending_indices, []
        moments = (len(indices), sum(indices), sum(map(mul, indices, indices)))
        self._sums = [(total + value) % WRAP for total, value in zip(self._sums, moments)]
        return [float(value) for value in self._sums]

    def compare(self, totals: Sequence[float], order: torch.Tensor, end: int) -> None:
        """Compare the part of `order` up to `end` with the count of all replicas.

        `order` has shape (examples,), int64.
        """
        part = order[self._part_start : end]
        # Sums of 64 bits wrap, and WRAP divides what they wrap at.
        moments = (len(part), int(part.sum()), int(torch.dot(part, part)))
        expected_sums = [value % WRAP for value in moments]
        sums = [value % WRAP for value in totals]
        if self._part_start == self._proven_end and sums == expected_sums:
            self._proven_end = end
        self._part_start = end
        self._sums = [0, 0, 0]

    def close(self, size: int) -> None:
        """The pass is over after `size` examples, and compared to its end."""
        self.passes += 1
        self.exact += int(self._proven_end == size)
        self._proven_end = self._part_start = 0

    def resume(self, consumed: int) -> None:
        """Continue to count at this place of the running pass, from the checkpoint."""
        self._part_start = consumed
        self._pending_indices = []
        self._sums = [0, 0, 0]

    def state_dict(self) -> Dict[str, int]:
        return {"epochs": self.passes, "exact": self.exact, "proven": self._proven_end}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        counts = [int(state[key]) for key in ("epochs", "exact", "proven")]
        self.passes, self.exact, self._proven_end = counts
