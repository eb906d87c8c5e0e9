"""The files between a replica and the agent while it trains: its heartbeat, and the orders."""

import mmap
import os
import struct
import time
from typing import Any, Iterator, Optional, Tuple

from gpq_agent import records, wire

_NUMBERS = {phase: number for number, phase in enumerate(wire.PHASES)}
_PHASE = struct.Struct("=q")
_PHASE_AT = struct.calcsize(wire.PULSE[:3])  # after pid and step
_REDUCES_AT = struct.calcsize(wire.PULSE)


class Heartbeat:
    """Where this replica is, readable while it hangs: a few numbers in a small mapped file in the
    attempt's folder. A step writes them in about a microsecond, without a system call or a thread.
    Without a folder (no gpq), or on a full disk, nothing is written. node/attempts/heartbeats.py
    reads them."""

    def __init__(self, folder: Optional[str], rank: int) -> None:
        self._map: Optional[mmap.mmap] = None
        self._step, self._step_time = -1, 0.0
        self._layout = struct.Struct(wire.PULSE + "q")  # and whether it waits in a backward pass
        self._pid = os.getpid()
        self._folder, self._name = folder, "{}{}".format(wire.RANK, rank)
        if folder:
            try:
                path = os.path.join(folder, self._name)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    # On a full disk a mapped write is a SIGBUS.
                    os.posix_fallocate(descriptor, 0, self._layout.size)
                    self._map = mmap.mmap(descriptor, self._layout.size)
                finally:
                    os.close(descriptor)
            except OSError:
                return
            self.beat(0, "starting")

    def beat(self, step: int, phase: str) -> None:
        """`step` optimizer steps are done. `phase`: one of wire.PHASES."""
        if self._map is None:
            return
        if step != self._step:
            self._step, self._step_time = step, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._layout.pack_into(self._map, 0, self._pid, step, _NUMBERS[phase], self._step_time, 0)

    def phase(self, phase: str) -> None:
        """Another phase of the same step."""
        if self._map is not None:
            _PHASE.pack_into(self._map, _PHASE_AT, _NUMBERS[phase])

    def reduces(self, waits: bool) -> None:
        """Is this replica in a backward pass, where only the others are missing?"""
        if self._map is not None:
            _PHASE.pack_into(self._map, _REDUCES_AT, waits)
            if waits:
                self.phase("arrived")

    def others_wait(self, step: int) -> bool:
        """Does another replica of this server wait for this one, after the same number of steps?
        For rare use."""
        arrived = _NUMBERS["arrived"]
        return any((pulse[1], pulse[2]) == (step, arrived) for pulse in self._others())

    def others_reduce(self) -> bool:
        """Does another replica of this server wait in its backward pass? For rare use."""
        return any(pulse[4] for pulse in self._others())

    def _others(self) -> Iterator[Tuple[Any, ...]]:
        if self._map is None or self._folder is None:
            return
        for name in os.listdir(self._folder):
            if name.startswith(wire.RANK) and name != self._name:
                try:
                    path = os.path.join(self._folder, name)
                    with os.fdopen(records.open_plain(path), "rb") as stream:
                        pulse = self._layout.unpack(stream.read(self._layout.size))
                except (OSError, ValueError, struct.error):
                    continue
                yield pulse


class ControlReader:
    """The newest order of the agent, in control.json of this attempt. Orders of another attempt,
    older ones and broken files change nothing."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self._path = os.path.join(run_dir, wire.CONTROL)
        self._attempt = attempt
        self._order: Optional[wire.Control] = None
        self._stamp: Tuple[int, ...] = ()

    def read(self) -> Optional[wire.Control]:
        """Reads the file only if it has changed."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return self._order
            content = wire.read_json(self._path)
            self._stamp = stamp
        except (OSError, ValueError):
            return self._order
        order = _parse(content)
        is_ours = order is not None and order.attempt == self._attempt
        if order is not None and is_ours and (self._order is None or order.seq > self._order.seq):
            self._order = order
        return self._order


def _parse(content: Any) -> Optional[wire.Control]:
    """A Control with fields of the right types, or None. Unknown fields belong to a later
    version."""
    if not isinstance(content, dict):
        return None
    try:
        return wire.Control(
            attempt=int(content["attempt"]),
            seq=int(content["seq"]),
            stop=bool(content.get("stop", False)),
            atomic_batch=int(content.get("atomic_batch", 0)),
            accum_steps=int(content.get("accum_steps", 0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
