"""Checkpoints that a script writes itself (any loop, fixed batch).

Their folders, the one that counts, and where to resume. The script decides what is in them.
"""

import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional

from gpq_agent import records, wire
from gpq_agent.train.checkpoints.store import KEEP
from gpq_agent.train.errors import GpqTrainError

RECORD = "saved.json"
PREFIX = "save-"


class Record(NamedTuple):
    """The content of saved.json. `complete`: names of saves, the newest first."""

    step: int
    complete: List[str]
    number: int


class ScriptCheckpoints:
    """One folder per save, and one record of the complete saves. Only rank 0 commits."""

    def __init__(self, folder: Optional[str]) -> None:
        """Raises GpqTrainError for a damaged record, because starting again would lose the
        saves."""
        self._folder = os.path.join(folder, "own") if folder else None
        record: Dict[str, Any] = {}
        try:
            if self._folder is not None:
                record = records.read_shape(Record, os.path.join(self._folder, RECORD)) or {}
        except records.Damaged as damage:
            hint = "restore it, or remove it so that the job starts from the beginning"
            problem = "the record of saves is damaged: {}".format(damage)
            raise GpqTrainError(problem, hint) from damage
        self.start_step = int(record.get("step", 0))
        self._complete_saves: List[str] = list(record.get("complete", []))
        self._number = int(record.get("number", 0))
        self._step = self.start_step

    @property
    def resume_path(self) -> Optional[str]:
        """The folder of the last complete save, or None."""
        if self._folder and self._complete_saves:
            return os.path.join(self._folder, self._complete_saves[0])
        return None

    def next_path(self) -> str:
        """The folder for the next save. It exists. Raises GpqTrainError without a checkpoint
        directory."""
        if self._folder is None:
            hint = "run the script under gpq, or call gpq.init(checkpoint_dir=...)"
            raise GpqTrainError("there is no checkpoint directory", hint)
        path = os.path.join(self._folder, self._name())
        os.makedirs(path, exist_ok=True)
        return path

    def commit(self, step: int) -> str:
        """The save in `next_path` is complete, and training resumes at `step`. Makes both durable
        and removes old saves."""
        path = self.next_path()
        folder = os.path.dirname(path)
        for name in (*files_below(path), *(name for name, _, _ in os.walk(path)), folder):
            wire.sync(name)
        names = [self._name(), *self._complete_saves]
        content = {"step": step, "number": self._number + 1, "complete": names[:KEEP]}
        wire.write_json(os.path.join(folder, RECORD), content)
        for name in names[KEEP:]:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        self.advance()
        self._step = step
        return path

    def finish(self) -> None:
        """Training is over, and the newest save is the last, until the next `commit`. Does nothing
        for a script without saves."""
        if self._folder is None or not self._complete_saves:
            return
        content = {"step": self._step, "number": self._number, "complete": self._complete_saves}
        wire.write_json(os.path.join(self._folder, RECORD), {**content, "end": True})

    def advance(self) -> None:
        """The save in `next_path` is complete, and the next one gets another folder. For replicas
        that do not commit."""
        self._complete_saves = [self._name(), *self._complete_saves][:KEEP]
        self._number += 1

    def sweep(self) -> None:
        """Remove saves that an earlier attempt did not complete. Otherwise files of other replicas
        would remain."""
        if self._folder is None or not os.path.isdir(self._folder):
            return
        for name in os.listdir(self._folder):
            if name.startswith(PREFIX) and name not in self._complete_saves:
                shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)

    def _name(self) -> str:
        return "{}{}".format(PREFIX, self._number + 1)


def files_below(folder: str) -> List[str]:
    """The paths of all files in and below a folder."""
    return [
        os.path.join(path, name) for path, _, names in os.walk(folder) for name in sorted(names)
    ]
