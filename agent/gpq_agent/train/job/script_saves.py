"""The saves of a script that saves by itself, on every replica: rank 0 commits, and all agree.

`script_checkpoints.py` knows what is on the disk.
"""

import os
import time
from typing import Optional

from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints, files_below
from gpq_agent.train.engine.engine import Engine
from gpq_agent.train.runtime.shutdown import raise_if_stopping


class ScriptSaves:
    """Where the script saves, and how the engine learns of it. One per job and replica."""

    def __init__(self, engine: Engine) -> None:
        """Rank 0 removes the unfinished saves of earlier attempts. Raises GpqTrainError for a
        damaged record."""
        self._engine = engine
        self._leads = engine.runtime.environment.rank == 0
        self._own = ScriptCheckpoints(engine.runtime.environment.checkpoint_dir)
        if self._leads:
            self._own.sweep()
        engine.runtime.meter.steps = self._own.start_step

    @property
    def start_step(self) -> int:
        """The step given with the last complete save, or 0."""
        return self._own.start_step

    @property
    def resume_path(self) -> Optional[str]:
        """The folder of the last complete save, or None."""
        return self._own.resume_path

    def next_path(self) -> str:
        """The folder for the next save. It exists. Raises GpqTrainError without a checkpoint
        directory."""
        return self._own.next_path()

    def commit(self, next_step: int) -> None:
        """The save in `next_path` is complete, and training resumes at `next_step`. Collective.

        Raises OSError on rank 0 if the disk refuses it.
        """
        raise_if_stopping()
        self._engine.runtime.agreement.call = "job.saved()"
        if self._leads:
            self._commit(next_step)
        else:
            self._own.advance()
        self._engine.runtime.meter.steps = next_step
        self._engine.runtime.agreement.broadcast_flag(success=True)

    def finish(self) -> None:
        """Training is over, and the newest save is its last."""
        if not self._leads:
            return
        try:
            self._own.finish()
        except OSError as error:
            self._engine.runtime.notice("cannot mark the last save: {}".format(error))

    def _commit(self, next_step: int) -> None:
        begin = time.perf_counter()
        path = self._own.commit(next_step)
        size = sum(os.path.getsize(name) for name in files_below(path))
        seconds = time.perf_counter() - begin
        content = {"step": next_step, "seconds": seconds, "bytes": size, "why": "periodic"}
        self._engine.runtime.report.send("checkpoint", content)
