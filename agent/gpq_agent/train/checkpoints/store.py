"""Checkpoints that are whole or absent.

Each is written to a temporary folder, then fsync, rename, and a manifest with size and SHA-256. The
newest two stay. A damaged one is skipped with a notice, and removed once there is a newer one. Only
rank 0 writes. The manifest also says which file the digest was taken of while it was written. As
long as this machine has not booted since, the kernel vouches for that file, and nobody reads all of
it again.
"""

import contextlib
import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Callable, Dict, List, NamedTuple, Optional, Set, cast

import torch

from gpq_agent import records, wire
from gpq_agent.train.checkpoints.state_parts import read_state, refusal

FORMAT = 1
KEEP = 2
PREFIX = "step-"
STATE = "state.pt"
MANIFEST = "manifest.json"
MIN_PERIOD = 60.0  # seconds between periodic checkpoints
PERIOD_FACTOR = 100.0  # and at least this many times as long as one blocks training
LARGE = 1 << 20  # bytes. Such a block is digested while it is written


class Saved(NamedTuple):
    """One finished checkpoint.

    seconds: how long training waited for it.
    refusal: why the next attempt will not load it, or "".
    """

    path: str
    seconds: float
    size: int
    refusal: str = ""


class CheckpointStore:
    """The checkpoints of one job in one folder. Its attempts share it, one after the other."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, "gpq")
        self._blocked_seconds = 0.0
        self._saved_at = time.monotonic()
        self._damaged: Set[str] = set()  # names of those that the job could not resume from
        os.makedirs(self.folder, exist_ok=True)

    def due(self) -> bool:
        """Is a periodic checkpoint due?"""
        period = max(MIN_PERIOD, PERIOD_FACTOR * self._blocked_seconds)
        return time.monotonic() - self._saved_at >= period

    def postpone(self) -> None:
        """Count the period from now, for example after a failed write."""
        self._saved_at = time.monotonic()

    def save(self, state: Dict[str, Any], step: int, attempt: int, why: str = "periodic") -> Saved:
        """Write a checkpoint durably. `why`: periodic, stop, or end. The last tells the agent that
        training is over. Raises OSError (or RuntimeError from torch's writer) and then leaves
        nothing behind."""
        begin = time.perf_counter()
        name = "{}{:012d}".format(PREFIX, step)
        temporary = os.path.join(self.folder, ".{}.{}.tmp".format(name, os.getpid()))
        for leftover in os.listdir(self.folder):  # of a killed attempt. They never overlap
            if leftover.startswith(".") and leftover.endswith(".tmp"):
                shutil.rmtree(os.path.join(self.folder, leftover), ignore_errors=True)
        try:
            os.mkdir(temporary)
            path = os.path.join(temporary, STATE)
            with open(path, "wb") as stream, DigestedFile(stream) as file:
                torch.save(state, cast("BinaryIO", file))  # all that it needs is write and flush
                sha256 = file.finish()
            size = os.path.getsize(path)
            manifest: Dict[str, Any] = {"format": FORMAT, "step": step, "attempt": attempt}
            manifest.update(why=why, bytes=size, sha256=sha256, stamp=stamp(path))
            wire.write_json(os.path.join(temporary, MANIFEST), manifest)
            # A stop right after a periodic checkpoint saves the same step again. Both stay until
            # pruning.
            final_path, repeat = os.path.join(self.folder, name), 0
            while os.path.exists(final_path):
                repeat += 1
                final_path = os.path.join(self.folder, "{}.{}".format(name, repeat))
            os.rename(temporary, final_path)
            wire.sync(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        reason = refusal(os.path.join(final_path, STATE))
        others = [other for other in self.names() if other != os.path.basename(final_path)]
        whole = [other for other in others if other not in self._damaged]
        for old in [*whole[KEEP - 1 :], *self._damaged.intersection(others)]:
            # Rename first: a kill in the middle must not leave half a checkpoint that looks whole.
            trash = os.path.join(self.folder, ".{}.old.tmp".format(old))
            with contextlib.suppress(OSError):
                os.rename(os.path.join(self.folder, old), trash)
            shutil.rmtree(trash, ignore_errors=True)
        self._blocked_seconds = time.perf_counter() - begin
        self._saved_at = time.monotonic()
        return Saved(final_path, self._blocked_seconds, size, reason)

    def names(self) -> List[str]:
        """Finished checkpoints, the newest first. A repeated step (`step-7.1`) is newer than the
        first one."""

        def age(name: str) -> List[int]:
            step, _, repeat = name[len(PREFIX) :].partition(".")
            return [int(part) if part.isdecimal() else -1 for part in (step, repeat)]

        names = [name for name in os.listdir(self.folder) if name.startswith(PREFIX)]
        return sorted(names, key=age, reverse=True)

    def newest(self, notice: Callable[[str], None]) -> Optional[str]:
        """The name of the newest whole checkpoint. A notice names the damaged ones that it
        skips."""
        for name in self.names():
            problem = self.problem(name)
            if not problem:
                return name
            self._damaged.add(name)
            words = "checkpoint {} is damaged ({}), so the job resumes from the one before it"
            notice(words.format(name, problem))
        return None

    def problem(self, name: str) -> str:
        """What is wrong with a checkpoint, or ""."""
        folder = os.path.join(self.folder, name)
        try:
            manifest = wire.read_json(os.path.join(folder, MANIFEST))
            if manifest is None:
                return "no manifest"
            if manifest.get("format") != FORMAT:
                return "format {}, this version reads {}".format(manifest.get("format"), FORMAT)
            path = self.path(name)
            if os.path.getsize(path) != manifest.get("bytes"):
                return "size differs from the manifest"
            if manifest.get("stamp") and manifest["stamp"] == stamp(path):
                return ""
            if digest(path) != manifest.get("sha256"):
                return "content differs from the manifest"
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def read(self, name: str) -> Dict[str, Any]:
        """The state, mapped on the CPU, so that only what is used is read."""
        return read_state(self.path(name))

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name, STATE)

    def manifest(self, name: str) -> Optional[Dict[str, Any]]:
        """The content of the manifest, or None if it is missing or unreadable."""
        try:
            return wire.read_json(os.path.join(self.folder, name, MANIFEST))
        except (OSError, ValueError):
            return None


def digest(path: str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    state = hashlib.sha256()
    with os.fdopen(records.open_plain(path), "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            state.update(block)
    return state.hexdigest()


class DigestedFile:
    """A binary stream to write to, and the SHA-256 of what was written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._state = hashlib.sha256()
        self._digester = ThreadPoolExecutor(1)

    def __enter__(self) -> "DigestedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._digester.shutdown()

    def write(self, data: Any) -> int:
        if memoryview(data).nbytes < LARGE:
            self._state.update(data)
            return self._stream.write(data)
        update = self._digester.submit(self._state.update, data)
        try:
            return self._stream.write(data)
        finally:
            update.result()  # the caller may reuse the memory of `data` after this

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> str:
        """Make the content durable. Returns its digest in hexadecimal."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._state.hexdigest()


def stamp(path: str) -> Dict[str, Any]:
    """What shows that nobody has written to a file since. It holds until the next boot, because a
    power cut may lose what was written. Empty on systems that do not identify their boots."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            boot_id = stream.read().strip()
    except OSError:
        return {}
    facts = os.stat(path)
    place = {"device": facts.st_dev, "inode": facts.st_ino}
    return {"boot": boot_id, **place, "changed": facts.st_ctime_ns}


def read_record(path: str) -> Dict[str, Any]:
    """What earlier attempts noted there. Empty if that is nothing. A damaged record is set
    aside."""
    try:
        return wire.read_json(path) or {}
    except records.Damaged as damage:
        records.set_aside(damage.path)
    except OSError:
        pass
    return {}


class MemoryRecord:
    """What is known to fit in memory. It is in a file of its own, because an out-of-memory error
    ends the attempt. It holds the largest atomic batch, and whether steps may be sampled for the
    noise scale, which needs extra memory."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "gpq", "memory.json")

    def bound(self) -> Optional[int]:
        """The largest atomic batch to try, or None if none ever failed."""
        value = read_record(self._path).get("max_atomic_batch")
        return value if isinstance(value, int) and value > 0 else None

    def may_sample(self) -> bool:
        return read_record(self._path).get("sample") is not False

    def stop_sampling(self) -> None:
        """A sampled step did not fit."""
        wire.write_json(self._path, dict(read_record(self._path), sample=False))

    def failed(self, atomic_batch: int, *, least: int = 1) -> int:
        """`atomic_batch` did not fit. Remember three quarters of it, and return that bound."""
        bound = max(min(atomic_batch * 3 // 4, self.bound() or atomic_batch), least)
        wire.write_json(self._path, dict(read_record(self._path), max_atomic_batch=bound))
        return bound
