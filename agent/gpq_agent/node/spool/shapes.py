"""The fields that files of an attempt must have to be valid, by name of the file. The others are in
`wire`.

Its job may write to the folder of an attempt. Whatever the job makes of it, gpq needs a folder
there.
"""

import contextlib
import os
import stat
import time
from typing import Any, Dict, List, NamedTuple, Optional, Type

from gpq_agent import records, wire

MOST_BYTES = 1 << 16  # of these files. What they say goes into every answer
NOTE = "note.json"
STOP_RANK = {"checkpoint": 1, "signal": 2, "kill": 3}


class Identity(NamedTuple):
    """shim.json: identity of a process."""

    pid: int
    start_time: int
    boot_id: str
    adopted: bool = False


class FirstProcess(NamedTuple):
    """started.json."""

    pid: int
    start_time: int
    boot_id: str
    started_at: float


class Stop(NamedTuple):
    """stop.json. `mode`: one of STOP_RANK."""

    mode: str
    grace: float
    seq: int


class Note(NamedTuple):
    """A note for the user about an attempt that has not ended yet."""

    note: str


class Unlaunched(NamedTuple):
    """Why the user's program did not start."""

    kind: str
    note: str


class FirstError(NamedTuple):
    """What ended a replica."""

    error: str
    rank: int = 0
    gpu: str = ""


class Departed(NamedTuple):
    """A replica that left."""

    rank: int


class Failures(NamedTuple):
    """The replicas that failed: [rank, exit code, negative for a signal], the first one first."""

    failures: List[List[int]]


SHAPES: Dict[str, Type[Any]] = {
    wire.SHIM: Identity,
    wire.STARTED: FirstProcess,
    wire.STOP: Stop,
    wire.EXIT: wire.ExitRecord,
    wire.CONTROL: wire.Control,
    NOTE: Note,
    wire.UNLAUNCHED: Unlaunched,
    wire.EXCUSED: Note,
    wire.FIRST_ERROR: FirstError,
    wire.DEPARTED: Departed,
    wire.FAILURES: Failures,
}


def statement(folder: str, name: str) -> Optional[Dict[str, Any]]:
    """What processes of an attempt say in one of these files. None if there is no valid one."""
    with contextlib.suppress(OSError, ValueError):
        return records.read_shape(SHAPES[name], os.path.join(folder, name), MOST_BYTES)
    return None


def beyond() -> int:
    """A number for an order that must count more than all earlier ones, if those cannot be read.
    They count from 1."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def mend_folder(folder: str) -> str:
    """Make it a folder that gpq can use again. Return what was wrong, "" if nothing was or if it is
    not there. Raises OSError."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(mode):
        what = "it is a file" if stat.S_ISREG(mode) else records.kind(mode)
        words = records.put_away(records.Damaged(folder, what))
        if os.path.lexists(folder):
            os.unlink(folder)
        os.mkdir(folder, 0o700)
        return words
    if mode & stat.S_IRWXU == stat.S_IRWXU:
        return ""
    os.chmod(folder, 0o700)
    return "its folder {} had mode {:03o}".format(folder, mode & 0o777)
