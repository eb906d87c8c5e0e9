"""Handles an error that ends the script: what the next attempt should know."""

import contextlib
import os
from typing import Optional

from gpq_agent import wire
from gpq_agent.train.attempt.runtime import Runtime
from gpq_agent.train.attempt.shape import BatchShape
from gpq_agent.train.attempt.shortage import lessen
from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.events import Failure
from gpq_agent.train.habits.observers import Observers
from gpq_agent.train.runtime.termination import is_out_of_memory, note_error

from .loop import TrainingLoop


class FailureHandler:
    """`memory`: what fitted, None without a folder for checkpoints. `loop`: None until the script
    has prepared its training."""

    def __init__(self, runtime: Runtime, shape: BatchShape, observers: Observers) -> None:
        folder = runtime.environment.checkpoint_dir
        self.memory = MemoryRecord(folder) if folder else None
        self.loop: Optional[TrainingLoop] = None
        self._runtime, self._shape, self._observers = runtime, shape, observers

    def failed(self, error: BaseException) -> None:
        """Called with the error before its traceback is shown."""
        environment = self._runtime.environment
        if environment.run_dir:
            note_error(environment.run_dir, environment.rank, error)
        micro = self.loop.failing() if self.loop is not None else None
        if micro is None:
            return
        if is_out_of_memory(error):
            self._out_of_memory(micro)
            return
        counts = micro.step.counts
        event = Failure(micro.place, len(counts), counts[micro.place], micro.step.total, error)
        for habit in self._observers.failed(event):
            self._shape.freedoms.record_locally(habit)

    def _out_of_memory(self, micro: MicroBatch) -> None:
        """An allocation failed. Let the next attempt ask for less."""
        if self.memory is None or self._shape.data is None:
            return
        limits, may_cut = self._shape.data.limits, self._shape.may_cut
        shortage = lessen(self.memory, micro.step, limits, may_cut=may_cut)
        self._runtime.notice(shortage.line)
        run_dir = self._runtime.environment.run_dir
        if shortage.is_ours and run_dir:
            with contextlib.suppress(OSError):  # then it counts as the job's fault
                wire.write_json(os.path.join(run_dir, wire.EXCUSED), {"note": shortage.line})
