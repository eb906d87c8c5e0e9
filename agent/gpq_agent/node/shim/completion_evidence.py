"""Evidence that a job was finished when somebody asked it to stop: files that appeared during the
attempt.

They are the job's files, on any file system, with any content. A child reads them, for a limited
time and up to a limited size. What it cannot read proves nothing. This module decides no outcome
and removes nothing.
"""

import contextlib
import json
import os
import re
import resource
import select
import signal
import stat
import time
from typing import Any, Callable, Dict, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import procs

PATIENCE = 5.0  # seconds for everything
SMALL = 1 << 16  # bytes to read from a record
LARGE = 32 << 20  # bytes to read from a trainer's state, which holds everything that it logged
MEMORY = 1 << 30  # bytes of address space that the child may have, whatever it reads
MOST_ENTRIES = 10_000  # entries of a folder to look at
SAID = {
    "marker": "the training library reported the end of the training",
    "done-file": "its done file was written",
    "checkpoint": "its newest checkpoint is the final one",
    "own": "its newest save is marked as the last",
    "trainer": "the newest trainer_state.json is at its last step",
}
Signs = Dict[str, str]  # a kind of SAID -> a value that changes when the file is written again


class CompletionEvidence:
    """Created before the job starts, asked after its end. `env`: the job's whole environment."""

    def __init__(self, order: wire.StartOrder, env: Dict[str, str], folder: str) -> None:
        self._folder = folder
        self._done = done_path(order, env)
        self._checkpoints = env.get(wire.ENV_CHECKPOINT_DIR, "")
        # At its first start it has no files except those that its user names.
        self._before = self._look() if order.attempt > 1 or self._done else {}

    def evidence(self) -> str:
        """What shows that the job was finished, one phrase. "" for nothing, and also if the files
        could not be read at the start or now."""
        if os.path.exists(os.path.join(self._folder, wire.STOPPED)):
            return ""  # it stopped half way, whatever it said earlier
        if os.path.exists(os.path.join(self._folder, wire.FINISHED)):
            return SAID["marker"]
        if self._before is None:
            return ""
        signs_now = self._look() or {}
        for kind, phrase in SAID.items():
            if signs_now.get(kind) not in (None, self._before.get(kind)):
                return phrase
        return ""

    def _look(self) -> Optional[Signs]:
        return _in_child(lambda: signs(self._done, self._checkpoints))


def done_path(order: wire.StartOrder, env: Dict[str, str]) -> str:
    """The absolute path of the done file, "" if the order names none."""
    path = order.done_file
    if path.startswith("~/"):
        path = env.get("HOME", "~") + path[1:]
    return os.path.join(order.cwd, path) if path else ""


def signs(done_file: str, checkpoints: str) -> Signs:
    """All signs that are there now. `done_file`: its path. `checkpoints`: the job's checkpoint
    folder."""
    looks: Dict[str, Callable[[], str]] = {
        "done-file": lambda: _stamp(os.stat(done_file)) if done_file else "",
        "checkpoint": lambda: _checkpoint(os.path.join(checkpoints, "gpq")),
        "own": lambda: _own(os.path.join(checkpoints, "own", "saved.json")),
        "trainer": lambda: _trainer(checkpoints),
    }
    signs_by_kind: Signs = {}
    for kind, look in looks.items():
        with contextlib.suppress(
            OSError, ValueError, TypeError, AttributeError, RecursionError, MemoryError
        ):
            sign = look()
            if sign:
                signs_by_kind[kind] = sign
    return signs_by_kind


def _checkpoint(folder: str) -> str:
    name = _newest(folder, re.compile(r"step-(\d{1,18})(?:\.(\d{1,9}))?"))
    content, sign = _record(os.path.join(folder, name, "manifest.json"), SMALL)
    return name + sign if content.get("why") == "end" else ""


def _own(path: str) -> str:
    content, sign = _record(path, SMALL)
    return sign if content.get("end") is True else ""


def _trainer(folder: str) -> str:
    """For Hugging Face's Trainer, whose checkpoints are in folders checkpoint-STEP."""
    name = _newest(folder, re.compile(r"checkpoint-(\d{1,18})()"))
    content, sign = _record(os.path.join(folder, name, "trainer_state.json"), LARGE)
    step, last = content.get("global_step"), content.get("max_steps")
    at_end = type(step) is int and type(last) is int and step >= last > 0
    return name + sign if at_end else ""


def _newest(folder: str, pattern: "re.Pattern[str]") -> str:
    """The entry with the highest number. Raises OSError if there is none, or too many to look
    at."""
    newest: Tuple[int, int, str] = (-1, 0, "")
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count == MOST_ENTRIES:
                raise OSError("more than {} entries".format(MOST_ENTRIES))
            match = pattern.fullmatch(entry.name)
            if match is not None:
                newest = max(newest, (int(match[1]), int(match[2] or 0), entry.name))
    if not newest[2]:
        raise FileNotFoundError(folder)
    return newest[2]


def _record(path: str, limit: int) -> Tuple[Dict[str, Any], str]:
    """The JSON object in a file, and its stamp. Raises OSError or ValueError if there is none or it
    is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as stream:
        sign = _stamp(os.fstat(stream.fileno()))
        data = stream.read(limit + 1) if sign else b""
    if not sign or len(data) > limit:
        raise ValueError("not a regular file of at most {} bytes".format(limit))
    return wire.decode(data), sign


def _stamp(status: os.stat_result) -> str:
    """Changes whenever the file is written, touched or replaced. "" if it is not a regular file."""
    if not stat.S_ISREG(status.st_mode):
        return ""
    return "{} {} {} {}".format(
        status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def _in_child(look: Callable[[], Signs]) -> Optional[Signs]:
    """What `look` finds within PATIENCE. None if it did not return, or failed.

    It runs in a grandchild, which init or another reaper adopts. A process that the kernel does not
    release must not be a child of the shim, because a shim with a child assumes that its job is
    alive.
    """
    try:
        child, pipe = procs.fork_with_pipe()
    except OSError:
        return None
    if child == 0:
        _fork_on(pipe, look)
    try:
        os.waitpid(child, 0)
        output, end = b"", time.monotonic() + PATIENCE
        while select.select([pipe], [], [], max(end - time.monotonic(), 0.0))[0]:
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            output += data
        pid, _, line = output.partition(b"\n")
        if not line.endswith(b"\n"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pid), signal.SIGKILL)
            return None
        return {str(kind): str(sign) for kind, sign in wire.decode(line).items()}
    except (OSError, ValueError):
        return None
    finally:
        os.close(pipe)


def _fork_on(writing: int, look: Callable[[], Signs]) -> None:
    """In the child. Does not return."""
    try:
        procs.keep_only({writing})
        if os.fork() == 0:
            os.write(writing, b"%d\n" % os.getpid())
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.write(writing, json.dumps(look()).encode("utf-8") + b"\n")
    finally:
        os._exit(0)
