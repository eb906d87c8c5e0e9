"""Handles an error that ends the script: what the next attempt should know."""

import contextlib
import os
from typing import Optional

import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.attempt.runtime import Runtime
from gpq_agent.train.attempt.shape import BatchShape
from gpq_agent.train.attempt.shortage import lessen
from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.data.sampler import MicroBatch
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.runtime.termination import is_out_of_memory, note_error

from .loop import TrainingLoop

# Errors that no micro-batch causes: files and networks, memory, a missing module.
OUTSIDE = (OSError, EOFError, MemoryError, ImportError, dist.DistError)
# The end of another replica, which gloo reports as RuntimeError.
LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout")


class FailureHandler:
    """`memory`: what fitted, None without a folder for checkpoints. `loop`: None until the script
    has prepared its training."""

    def __init__(self, runtime: Runtime, shape: BatchShape) -> None:
        folder = runtime.environment.checkpoint_dir
        self.memory = MemoryRecord(folder) if folder else None
        self.loop: Optional[TrainingLoop] = None
        self._runtime, self._shape = runtime, shape

    def failed(self, error: BaseException) -> None:
        """Called with the error before its traceback is shown."""
        environment = self._runtime.environment
        if environment.run_dir:
            note_error(environment.run_dir, environment.rank, error)
        loop = self.loop
        micro = loop.failing() if loop is not None else None
        if loop is None or micro is None:
            return
        if is_out_of_memory(error):
            self._out_of_memory(micro)
            return
        counts = micro.step.counts
        if loop.has_cut or len(counts) == 1 or not may_be_of_a_part(error):
            return
        # The first step in micro-batches: the loop probably cannot handle part of a batch.
        words = "{} with {} of {} examples"
        detail = words.format(type(error).__name__, counts[micro.place], micro.step.total)
        self._shape.freedoms.record_locally(Habit("part-error", detail))

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


def may_be_of_a_part(error: BaseException) -> bool:
    """May this error come from a cut batch? Not if it is from outside the loop, or from another
    replica's end."""
    if not isinstance(error, Exception) or isinstance(error, (GpqTrainError, *OUTSIDE)):
        return False
    text = str(error).lower()
    return not (isinstance(error, RuntimeError) and any(words in text for words in LOST))
