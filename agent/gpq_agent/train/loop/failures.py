"""Handles an error that ends the script: what the next attempt should know. If memory ran out, who
chose the size that did not fit, and what the next attempt does instead."""

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.checkpoints.store import MemoryRecord
from gpq_agent.train.data.batches import Limits, Step, ceil_div
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.habits.table import Habit
from gpq_agent.train.loop.first_part import RUINED, RuinedWeights
from gpq_agent.train.process.shutdown import is_out_of_memory, note_error

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine

# Errors that no micro-batch causes: files and networks, memory, a missing module.
OUTSIDE = (OSError, EOFError, MemoryError, ImportError, dist.DistError)
TRIED = "the loop failed on a batch that gpq made to look at its loss ({})"
# The end of another replica, which gloo reports as RuntimeError.
LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout")


class FailureHandler:
    """`memory`: what fitted, None without a folder for checkpoints."""

    def __init__(self, engine: "Engine") -> None:
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
            self._out_of_memory(step)
            return
        is_proven = (loop.has_cut or len(step.micros) == 1) and not loop.in_trial
        if is_proven or not may_be_of_a_part(error):
            return
        # The first step in micro-batches, or a trial: the loop probably cannot handle part of a
        # batch.
        words = "{} with {} of {} examples"
        detail = words.format(type(error).__name__, len(micro.indices), step.total)
        self._engine.shape.freedoms.record_locally(Habit("part-error", detail))
        if loop.in_trial:
            self._excuse(TRIED.format(detail))

    def _out_of_memory(self, step: Step) -> None:
        """An allocation failed. Let the next attempt ask for less."""
        runtime, shape = self._engine.runtime, self._engine.shape
        if self.memory is None or shape.data is None:
            return
        shortage = lessen(self.memory, step, shape.data.limits, may_cut=shape.may_cut)
        runtime.notice(shortage.line)
        if shortage.is_ours:
            self._excuse(shortage.line)

    def _excuse(self, note: str) -> None:
        """The job starts again, without counting this as a failure of its own."""
        run_dir = self._engine.runtime.environment.run_dir
        if run_dir:
            with contextlib.suppress(OSError):  # then it counts as the job's fault
                wire.write_json(os.path.join(run_dir, wire.EXCUSED), {"note": note})


def may_be_of_a_part(error: BaseException) -> bool:
    """May this error come from a cut batch? Not if it is from outside the loop, or from another
    replica's end."""
    if not isinstance(error, Exception) or isinstance(error, (GpqTrainError, *OUTSIDE)):
        return False
    text = str(error).lower()
    return not (isinstance(error, RuntimeError) and any(words in text for words in LOST))


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
    is_cut = len(step.counts) > 1 and own_share <= limits.max_local
    bound = record.failed(examples)
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
